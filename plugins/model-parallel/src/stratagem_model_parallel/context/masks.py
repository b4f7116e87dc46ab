"""Attention masks, which cover full sequences."""

from __future__ import annotations

import torch

from stratagem.errors import DataError
from stratagem_model_parallel.context.ranks import SequenceRanks


def refuse_unfit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    ranks: SequenceRanks,
) -> None:
    """Refuse attention other than among the tokens of one sharded sequence. Not collective.

    Args:
        query: (batch, heads, tokens of this rank, width).
        key: the same shape; may have fewer heads.
        value: the same shape as `key`.
        mask: of full sequences: (batch, heads, queries, keys); each may be 1, and the first two may be missing.
        ranks: the ranks among which sequences are sharded.

    Raises:
        DataError: names the shapes, and what is possible.
    """
    shapes = [tuple(each.shape) for each in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes) or len({(shape[0], shape[2]) for shape in shapes}) > 1:
        raise DataError(
            f"attention on shards is among the tokens of one sequence, as (batch, heads, tokens, width), and "
            f"got queries, keys and values of {', '.join(map(str, shapes))}: leave blocks with cross attention, or "
            "with keys kept from before, out of the plan"
        )
    if mask is None:
        return
    heads, whole = query.shape[1], query.shape[2] * ranks.size
    if not 2 <= mask.dim() <= 4 or any(side not in (1, whole) for side in mask.shape[-2:]):
        raise DataError(
            f"attention got a mask of shape {tuple(mask.shape)}, and a sequence has {whole} tokens, {query.shape[2]} "
            f"on each of {ranks.size} ranks: make the mask of whole sequences, ({whole}, {whole}) at its end, "
            "outside of the blocks, or use is_causal=True"
        )
    if mask.dim() > 2 and mask.shape[-3] not in (1, heads):
        raise DataError(
            f"attention got a mask of shape {tuple(mask.shape)} for {heads} heads: give one for all heads or one for "
            f"each, (batch, {heads}, {whole}, {whole})"
        )
    if mask.dim() == 4 and mask.shape[0] not in (1, query.shape[0]):
        raise DataError(
            f"attention got a mask of shape {tuple(mask.shape)} for a batch of {query.shape[0]}: give one for all "
            "sequences or one for each"
        )


def of_heads(mask: torch.Tensor | None, ranks: SequenceRanks) -> torch.Tensor | None:
    """Return the part of `mask` for this rank's heads. Not collective."""
    if mask is None or mask.dim() < 3 or mask.shape[-3] == 1:
        return mask
    return mask.chunk(ranks.size, -3)[ranks.rank]


def of_queries(mask: torch.Tensor | None, ranks: SequenceRanks) -> torch.Tensor | None:
    """Return the part of `mask` for this rank's queries, as a view. Not collective."""
    return mask if mask is None or mask.shape[-2] == 1 else ranks.shard(mask, -2)
