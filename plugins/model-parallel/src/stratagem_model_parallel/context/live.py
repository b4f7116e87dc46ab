"""The ranks among which the live run of this process cuts sequences, and sums over tokens among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stratagem.sdk.tensors import map_tensors
from stratagem_model_parallel.context.ranks import SequenceRanks
from stratagem_model_parallel.context.region import SequenceRegion

_LIVE: list[SequenceRanks] = []
"""None or one. Of the process: `sum_over_sequence` is called from a module's code, which has no session."""


@contextmanager
def sequences_cut_among(ranks: SequenceRanks | None) -> Iterator[None]:
    """Around a run that cuts sequences among `ranks`; None for a run that cuts none."""
    before = list(_LIVE)
    _LIVE[:] = [] if ranks is None else [ranks]
    try:
        yield
    finally:
        _LIVE[:] = before


def live_ranks() -> SequenceRanks | None:
    """Return them; None where sequences aren't cut."""
    return _LIVE[0] if _LIVE else None


def sum_over_sequence(function: Callable[..., Any], *tensors: torch.Tensor, dim: int = 1) -> Any:
    """Return `function(*tensors)`, a sum over tokens, of which each rank computes its shard's. Collective.

    Under context_parallel among the ranks that share sequences out; everywhere else it calls the function, and that
    is all. For what comes after the blocks and is large, as the logits of a language model::

        def losses(hidden, labels):
            return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten(), reduction="sum")

        loss = sum_over_sequence(losses, hidden, labels) / labels.numel()

    Args:
        function: takes as many tensors, and returns tensors that are sums over their tokens, not means. It has no
            attention.
        tensors: of whole sequences, the same on every rank that shares them.
        dim: the dimension of each that is the sequence.

    Returns:
        What the function returns for whole sequences; gradients flow through it.

    Raises:
        DataError: the ranks can't have equal shards.
        ConfigError: the function calls attention.
    """
    ranks = live_ranks()
    if ranks is None:
        return function(*tensors)
    with SequenceRegion("the function given to sum_over_sequence", ranks, None):
        sums = function(*(ranks.shard(tensor, dim) for tensor in tensors))
    return map_tensors(ranks.summed, sums)
