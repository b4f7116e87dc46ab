"""One collective per logging point, whatever the ranks log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import torch

from stratagem.errors import LoggingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratagem.collectives.base import Collectives

PER_BLOCK = 63
"""Values per collective; more are logged in several."""


class Partial(NamedTuple):
    """One rank's share of a value."""

    op: str
    """mean, sum, min or max."""
    value: Any
    """This rank's mean, sum, min or max."""
    weight: int
    """Samples behind it."""

    def local(self) -> float:
        """The value, if this rank were the only one."""
        return float(self.value)


def reduce_over_ranks(collectives: Collectives, parts: Mapping[str, Partial], where: str) -> dict[str, float]:
    """Reduce `parts` over all ranks. Collective, also for a rank that has none.

    Each rank sends a block of one fixed size that begins with a checksum of its names. So ranks that
    log different names learn it from the same collective, and none is left waiting.

    Returns:
        Name → reduced value, equal on all ranks.

    Raises:
        LoggingError: ranks log different names here; says which rank logs what.
    """
    names = sorted(parts)
    checksum = crc32(repr([(name, parts[name].op) for name in names]).encode())
    blocks = [names[start : start + PER_BLOCK] for start in range(0, len(names), PER_BLOCK)] or [[]]
    reduced: dict[str, float] = {}
    for block in blocks:
        numbers = [float(checksum), float(len(names))]
        for name in block:
            numbers += [float(parts[name].value), float(parts[name].weight)]
        numbers += [0.0] * (2 + 2 * PER_BLOCK - len(numbers))
        gathered = collectives.all_gather(torch.tensor(numbers, dtype=torch.float64))
        if bool((gathered[:, 0] != checksum).any()):
            _refuse_different_names(collectives, names, where)
        for index, name in enumerate(block):
            column = gathered[:, 2 + 2 * index : 4 + 2 * index]
            reduced[name] = _reduce(parts[name].op, column[:, 0], column[:, 1])
    return reduced


def _reduce(op: str, values: torch.Tensor, weights: torch.Tensor) -> float:
    if op == "mean":
        return float((values * weights).sum() / weights.sum())
    if op == "sum":
        return float(values.sum())
    return float(values.min() if op == "min" else values.max())


def _refuse_different_names(collectives: Collectives, names: list[str], where: str) -> None:
    everyone = collectives.gather_objects(names)
    common = set(everyone[0]).intersection(*everyone)
    only = {rank: sorted(set(theirs) - common) for rank, theirs in enumerate(everyone)}
    told = "; ".join(f"rank {rank} logs {theirs}" for rank, theirs in only.items() if theirs)
    raise LoggingError(
        f"at {where}, ranks log different values with sync_dist: {told or 'the same names reduced differently'}; "
        "log the same names on every rank, or with sync_dist=False"
    )
