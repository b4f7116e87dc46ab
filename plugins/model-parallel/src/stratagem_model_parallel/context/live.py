"""The ranks among which the current run shards sequences, and sums over tokens among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stratagem.sdk.tensors import map_tensors
from stratagem_model_parallel.context.ranks import SequenceRanks
from stratagem_model_parallel.context.region import SequenceRegion

_LIVE: list[SequenceRanks] = []
"""At most one element. Global, since a module's code calls `sum_over_sequence` without a session."""


@contextmanager
def sequences_cut_among(ranks: SequenceRanks | None) -> Iterator[None]:
    """While active, the current run shards sequences among `ranks`; None means that it shards none."""
    before = list(_LIVE)
    _LIVE[:] = [] if ranks is None else [ranks]
    try:
        yield
    finally:
        _LIVE[:] = before


def live_ranks() -> SequenceRanks | None:
    """Return the ranks among which sequences are sharded; None if they aren't."""
    return _LIVE[0] if _LIVE else None


def sum_over_sequence(function: Callable[..., Any], *tensors: torch.Tensor, dim: int = 1) -> Any:
    """Return `function(*tensors)`, a sum over tokens; each rank computes it for its shard. Collective.

    Collective among the ranks that shard a sequence, under context_parallel; elsewhere it only calls the function.
    Use it for large computations after the blocks, such as the logits of a language model::

        def losses(hidden, labels):
            return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten(), reduction="sum")

        loss = sum_over_sequence(losses, hidden, labels) / labels.numel()

    Args:
        function: takes the tensors, and returns sums over their tokens, not means. It must not call attention.
        tensors: of full sequences, the same on all ranks that shard them.
        dim: the sequence dimension of each tensor.

    Returns:
        The function's result for full sequences; gradients flow through it.

    Raises:
        DataError: the sequence can't be divided into equal shards.
        ConfigError: the function calls attention.
    """
    ranks = live_ranks()
    if ranks is None:
        return function(*tensors)
    with SequenceRegion("the function given to sum_over_sequence", ranks, None):
        sums = function(*(ranks.shard(tensor, dim) for tensor in tensors))
    return map_tensors(ranks.summed, sums)
