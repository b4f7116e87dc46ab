"""Which ranks are slower than the others."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

RATIO = 1.2
"""A rank whose own work takes so many times as long as that of the others is called slow."""
LEAST_NS = 1_000_000
"""By how much, at least: less is the noise of a step of a few milliseconds."""


class Slow(NamedTuple):
    """A rank that is slower than the others."""

    rank: int
    ratio: float
    """Its time over the median of the others'."""
    own_ns: float
    others_ns: float


def slow_ranks(own_ns: Sequence[float]) -> list[Slow]:
    """Return the ranks whose time for a step, without waiting, is clearly longer than the median of the others.

    Args:
        own_ns: by rank.
    """
    found = []
    for rank, own in enumerate(own_ns):
        others = [*own_ns[:rank], *own_ns[rank + 1 :]]
        usual = median(others) if others else own
        if usual > 0 and own >= RATIO * usual and own - usual >= LEAST_NS:
            found.append(Slow(rank, own / usual, own, usual))
    return found
