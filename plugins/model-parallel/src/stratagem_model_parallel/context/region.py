"""`SequenceRegion`: while it is active, tensors are shards of the sequence, and attention sees all of it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stratagem import ConfigError
from stratagem.sdk.loops import forked_rng
from stratagem_model_parallel.attention import merged_mask
from stratagem_model_parallel.context.masks import refuse_unfit
from stratagem_model_parallel.context.ranks import SequenceRanks
from stratagem_model_parallel.context.ring import ring
from stratagem_model_parallel.context.ulysses import ulysses
from stratagem_model_parallel.torch_private import saved_tensor_hooks

Attention = Callable[..., torch.Tensor]
ATTENTIONS: dict[str, Attention] = {"ulysses": ulysses, "ring": ring}
"""Name → function that computes attention among ranks."""

_SDPA = signature(lambda query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options: None)
_MULTI_HEAD = signature(F.multi_head_attention_forward)
_DROPOUTS = {
    function: signature(function)
    for function in (
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
    )
}


class SequenceRegion(TorchFunctionMode):
    """Replaces calls of torch's attention by attention over full sequences, and draws dropout for each rank.

    Args:
        name: of the block or function that runs within, for errors.
        ranks: the ranks among which sequences are sharded.
        attention: computes attention; None if attention isn't allowed.

    Attributes:
        attended: how often attention was computed.
    """

    def __init__(self, name: str, ranks: SequenceRanks, attention: Attention | None) -> None:
        super().__init__()
        self.attended = 0
        self._name, self._ranks, self._attention = name, ranks, attention
        self._saved, self._grad = saved_tensor_hooks(), torch.is_grad_enabled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            called = _SDPA.bind(*args, **kwargs)
            called.apply_defaults()
            options = called.arguments.pop("options")
            return self._attend(**called.arguments, **options)
        if func is F.multi_head_attention_forward:
            called = _MULTI_HEAD.bind(*args, **kwargs)
            called.apply_defaults()
            return self._multi_head(**called.arguments)
        if func in _DROPOUTS:
            called = _DROPOUTS[func].bind(*args, **kwargs)
            called.apply_defaults()
            if called.arguments["training"] and called.arguments["p"]:
                return self._drawn_apart(called.arguments["input"].device, func, *args, **kwargs)
        return func(*args, **kwargs)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        dropout_p: float,
        is_causal: bool,
        **options: Any,
    ) -> torch.Tensor:
        if self._attention is None:
            raise ConfigError(
                f'{self._name} calls attention, and its plan has it as "tokenwise": give it the style "block"'
            )
        if saved_tensor_hooks() != self._saved or torch.is_grad_enabled() != self._grad:
            raise ConfigError(
                f"attention within {self._name} is called in a checkpoint, or under no_grad, that began within the "
                "block, whose backward wouldn't know that sequences are cut: checkpoint whole blocks"
            )
        refuse_unfit(query, key, value, attn_mask, self._ranks)
        self.attended += 1
        options.update(dropout_p=dropout_p, is_causal=is_causal)
        call = self._attention, query, key, value, attn_mask, self._ranks
        return (
            self._drawn_apart(query.device, *call, **options) if dropout_p else call[0](*call[1:], **options)
        )

    def _multi_head(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        num_heads: int,
        in_proj_weight: torch.Tensor | None,
        in_proj_bias: torch.Tensor | None,
        bias_k: torch.Tensor | None,
        add_zero_attn: bool,
        dropout_p: float,
        out_proj_weight: torch.Tensor,
        out_proj_bias: torch.Tensor | None,
        training: bool,
        key_padding_mask: torch.Tensor | None,
        need_weights: bool,
        attn_mask: torch.Tensor | None,
        is_causal: bool,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Replace `F.multi_head_attention_forward`, which MultiheadAttention calls with (tokens, batch, width)."""
        is_self = query is key and key is value and query.dim() == 3
        if not is_self or in_proj_weight is None or need_weights or bias_k is not None or add_zero_attn:
            raise ConfigError(
                f"a MultiheadAttention within {self._name} does what context parallelism can't: it takes batches, "
                "attends within one sequence, and has no attention weights: call it as (x, x, x, "
                "need_weights=False), without add_bias_kv, add_zero_attn, kdim and vdim"
            )
        tokens, batch, width = query.shape
        projected = F.linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)
        q, k, v = (each.reshape(tokens, batch, num_heads, -1).permute(1, 2, 0, 3) for each in projected)
        is_causal = is_causal and key_padding_mask is None
        mask = None if is_causal else merged_mask(attn_mask, key_padding_mask, num_heads, q.dtype)
        out = self._attend(q, k, v, mask, dropout_p if training else 0.0, is_causal)
        out = out.permute(2, 0, 1, 3).reshape(tokens, batch, width)
        return F.linear(out, out_proj_weight, out_proj_bias), None

    def _drawn_apart(
        self, device: torch.device, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function that draws random numbers, with a seed per rank: ranks have different activations."""
        # From the default generator, which activation checkpointing restores, so that recomputation draws the same.
        seed = int(torch.randint(2**62, ())) + self._ranks.rank
        with forked_rng(device):
            torch.manual_seed(seed)
            return function(*args, **kwargs)
