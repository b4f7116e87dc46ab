"""Finds ranks that are slower than the others."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

RATIO = 1.2
"""A rank is slow if its own work takes at least this many times as long as the others'."""
LEAST_NS = 1_000_000
"""Minimum difference (ns): smaller ones are noise in steps of a few milliseconds."""


class Slow(NamedTuple):
    """A rank that is slower than the others."""

    rank: int
    ratio: float
    """Its time divided by the median of the others'."""
    own_ns: float
    others_ns: float


def slow_ranks(own_ns: Sequence[float]) -> list[Slow]:
    """Return the ranks whose own time for a step, without waiting, is clearly longer than the others' median.

    Args:
        own_ns: own time of each rank.
    """
    found = []
    for rank, own in enumerate(own_ns):
        others = [*own_ns[:rank], *own_ns[rank + 1 :]]
        usual = median(others) if others else own
        if usual > 0 and own >= RATIO * usual and own - usual >= LEAST_NS:
            found.append(Slow(rank, own / usual, own, usual))
    return found
