"""Ulysses attention by all-to-all: each rank computes some of the heads for the full sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from stratagem.errors import DataError
from stratagem.sdk.torch_private import tensor_version
from stratagem_model_parallel.context.masks import of_heads
from stratagem_model_parallel.context.ranks import SequenceRanks
from stratagem_model_parallel.torch_private import saved_tensor_hooks


def ulysses(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    ranks: SequenceRanks,
    **options: Any,
) -> torch.Tensor:
    """Return this rank's shard of `scaled_dot_product_attention` over full sequences. Collective.

    DeepSpeed Ulysses (Jacobs et al., https://arxiv.org/abs/2309.14509). An all-to-all before attention turns shards
    of the sequence into shards of the heads; another one afterwards turns them back. Heads of keys and values that
    can't be distributed equally are repeated.

    Args:
        query: (batch, heads, tokens of this rank, width).
        key: as query; its heads may be fewer under `enable_gqa`.
        value: as key.
        mask: of full sequences.
        ranks: the ranks among which sequences are sharded.
        options: further keywords of `scaled_dot_product_attention`.

    Raises:
        DataError: the number of ranks doesn't divide the number of heads.
    """
    heads, size = query.shape[1], ranks.size
    if heads % size:
        raise DataError(
            f'attention="ulysses" gives each rank some of the heads, and {heads} can\'t be distributed equally among '
            f'{size} ranks: choose attention="ring", or a number of ranks that divides {heads}'
        )
    key, value = (_shareable(each, heads, size) for each in (key, value))
    query, key, value = (_to_heads(each, ranks) for each in (query, key, value))
    options["enable_gqa"] = key.shape[1] != query.shape[1]
    mask = of_heads(mask, ranks)
    if saved_tensor_hooks() is not None:  # activation checkpointing, or other code, decides what is saved
        return _to_tokens(F.scaled_dot_product_attention(query, key, value, mask, **options), ranks)
    kept: list[_Kept] = []

    def keep(saved: torch.Tensor) -> _Kept:
        kept.append(_Kept(saved, ranks))
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(keep, _Kept.value):
        out = F.scaled_dot_product_attention(query, key, value, mask, **options)
    attended = _to_tokens(out, ranks)
    for each in kept:
        each.replace(out, attended)
    return attended


class _Kept:
    """A tensor that attention saves for backward.

    The next layer saves attention's output anyway, sharded by tokens. So the output sharded by heads isn't saved:
    backward sends it once more, which is collective.
    """

    def __init__(self, saved: torch.Tensor, ranks: SequenceRanks) -> None:
        self._saved, self._ranks, self._version = saved, ranks, -1

    def replace(self, out: torch.Tensor, attended: torch.Tensor) -> None:
        """If this tensor is `out`, save `attended` instead: the same values, sharded by tokens."""
        if self._saved.data_ptr() == out.data_ptr() and self._saved.shape == out.shape:
            self._saved, self._version = attended.detach(), tensor_version(attended)

    def value(self) -> torch.Tensor:
        """Return the saved tensor. Collective if it was replaced."""
        if self._version < 0:
            return self._saved
        if tensor_version(self._saved) != self._version:
            raise DataError(
                "what attention returned was changed in place, and backward needs it as it was: change a copy"
            )
        with torch.no_grad():
            return _to_heads(self._saved, self._ranks)


def _shareable(x: torch.Tensor, heads: int, size: int) -> torch.Tensor:
    """Repeat heads of keys or values until they can be distributed, each with the queries that it serves."""
    own = x.shape[1]
    if own % size == 0:
        return x
    return x.repeat_interleave((size if size % own == 0 else heads) // own, 1)


def _to_heads(x: torch.Tensor, ranks: SequenceRanks) -> torch.Tensor:
    """(batch, heads, own tokens, width) → (batch, own heads, tokens, width)."""
    batch, heads, tokens, width = x.shape
    sent = x.reshape(batch, ranks.size, heads // ranks.size, tokens, width).movedim(1, 0)
    return ranks.exchanged(sent).permute(1, 2, 0, 3, 4).flatten(2, 3)


def _to_tokens(x: torch.Tensor, ranks: SequenceRanks) -> torch.Tensor:
    """(batch, own heads, tokens, width) → (batch, heads, own tokens, width)."""
    batch, heads, tokens, width = x.shape
    sent = x.reshape(batch, heads, ranks.size, tokens // ranks.size, width).movedim(2, 0)
    received = ranks.exchanged(sent).permute(1, 3, 0, 2, 4)
    # Tokens first in memory, like torch's own attention, so that joining the heads is a view.
    by_tokens = received.reshape(batch, tokens // ranks.size, heads * ranks.size, width).contiguous()
    return by_tokens.transpose(1, 2)
