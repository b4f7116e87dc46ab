"""Splits `torch.nn.MultiheadAttention` by heads among ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn import functional as F

from stratagem import ConfigError
from stratagem_model_parallel.sequence import relaid
from stratagem_model_parallel.styles import Rowwise, own_parts, split
from stratagem_model_parallel.torch_private import apply_style, is_packed


class Attention(ParallelStyle):
    """Gives each rank some of the heads. The packed projection is split as in `Packed`.

    Args:
        sequence_dim: the dimension of which inputs and outputs are shards; None if they aren't sharded.
    """

    def __init__(self, sequence_dim: int | None) -> None:
        super().__init__()
        self.sequence_dim = sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, nn.MultiheadAttention) or not is_packed(module):
            raise ConfigError(
                f"the style 'attention' is for torch.nn.MultiheadAttention whose keys and values are as wide as its "
                f"queries, and not for {module}"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise ConfigError(
                "the style 'attention' can't split add_bias_kv and add_zero_attn: leave them out"
            )
        split(module, "in_proj_weight", device_mesh, 0)
        split(module, "in_proj_bias", device_mesh, 0)
        after = Replicate() if self.sequence_dim is None else Shard(self.sequence_dim)
        apply_style(Rowwise(output_layouts=after), module.out_proj, device_mesh)
        attention: Any = module
        # patch: replaced forwards
        attention.forward = partial(_attend, module, device_mesh, self.sequence_dim)
        return module


def _attend(
    module: Any,
    mesh: DeviceMesh,
    sequence_dim: int | None,
    query: Any,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, None]:
    """Like `MultiheadAttention.forward`, for batches, without attention weights."""
    if need_weights or query.dim() != 3:
        raise ConfigError(
            "a MultiheadAttention whose heads are distributed takes batches and has no attention weights: call it "
            "with need_weights=False and inputs of three dimensions"
        )
    before = Replicate() if sequence_dim is None else Shard(sequence_dim)
    projected = {id(x): _projected(module, x, mesh, before) for x in (query, key, value)}
    q, k, v = (projected[id(x)].chunk(3, -1)[place] for place, x in enumerate((query, key, value)))
    if not module.batch_first:
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    heads = module.num_heads // mesh.size()
    q, k, v = (each.reshape(*each.shape[:2], heads, module.head_dim).transpose(1, 2) for each in (q, k, v))
    mask = merged_mask(attn_mask, key_padding_mask, module.num_heads, q.dtype)
    if mask is not None and mask.dim() == 4 and mask.shape[1] > 1:
        mask = mask.chunk(mesh.size(), 1)[mesh.get_local_rank()]
    attended = F.scaled_dot_product_attention(
        q, k, v, mask, module.dropout if module.training else 0.0, is_causal=is_causal and mask is None
    )
    attended = attended.transpose(1, 2).flatten(2)
    return module.out_proj(attended if module.batch_first else attended.transpose(0, 1).contiguous()), None


def _projected(module: Any, x: torch.Tensor, mesh: DeviceMesh, before: Any) -> torch.Tensor:
    whole: DTensor = relaid(x, mesh, before, Replicate())
    outputs: Any = F.linear(whole, module.in_proj_weight, module.in_proj_bias)
    return own_parts(outputs, 3, mesh)


def merged_mask(
    attn_mask: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
    num_heads: int,
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """Merge the masks that `MultiheadAttention` takes into one that is added to scores.

    Args:
        attn_mask: (queries, keys), or (batch × heads, queries, keys); True where a query may not look.
        key_padding_mask: (batch, keys).
        num_heads: of the whole layer.
        dtype: of the scores.

    Returns:
        (queries, keys), or (batch, heads or 1, queries or 1, keys); None where there is no mask.
    """
    masks = []
    if attn_mask is not None:
        mask = _added(attn_mask, dtype)
        masks.append(mask if mask.dim() == 2 else mask.reshape(-1, num_heads, *mask.shape[1:]))
    if key_padding_mask is not None:
        masks.append(_added(key_padding_mask, dtype)[:, None, None, :])
    return sum(masks[1:], masks[0]) if masks else None


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
