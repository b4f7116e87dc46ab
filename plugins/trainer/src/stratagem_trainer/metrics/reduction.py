"""Reduce what ranks have logged, in one collective per logging point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import torch

from stratagem.errors import LoggingError

if TYPE_CHECKING:
    from stratagem import Collectives

PER_BLOCK = 63
"""Values per collective. More values than these take several collectives."""
_HEADER = 7


class PartialReduction(NamedTuple):
    """One rank's share of a value that is reduced over ranks."""

    op: str
    """"mean", "sum", "min" or "max"; or "first" for a value that isn't reduced."""
    value: Any
    """This rank's mean, sum, min or max."""
    weight: Any
    """Number of samples, or another weight for the mean: a number, or a 0-dim tensor."""

    def local(self) -> float:
        """Return the value on this rank alone."""
        return float(self.value)


@dataclass(frozen=True)
class RankLog:
    """What one rank has logged until a logging point."""

    synced: Mapping[str, PartialReduction] = field(default_factory=dict)
    """Values to reduce over ranks."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Values that were logged without `sync_dist`."""
    had_batches: bool = True
    """False on a rank without data. It need not log what the others do."""
    nan_step: int = 0
    """The first step at which this rank's loss wasn't finite; 0 if there is none."""
    rows: int = 0
    """Number of rows of single evaluation steps on this rank."""
    objects: int = 0
    """Number of metric objects to compute on this rank."""


@dataclass(frozen=True)
class ReducedLog:
    """Result of a logging point. Equal on all ranks, except for values that ranks logged without `sync_dist`."""

    values: dict[str, float]
    """Name → reduced value. Also has values that only other ranks logged, each from the first rank that did."""
    nan_steps: tuple[int, ...]
    """The first step of each rank whose loss isn't finite, or 0."""
    rows: int
    """The largest number of rows on any rank."""
    objects: int = 0
    """The largest number of metric objects on any rank."""


class LogReduction:
    """Reduces what ranks log. Its methods are collective.

    Args:
        collectives: collectives of all ranks that log.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._missing: dict[tuple[int, ...], bool] = {}
        """Checksums of the names in each rank's `RankLog.own` → whether rank 0 lacks some of them."""

    def reduce(self, log: RankLog, where: str) -> ReducedLog:
        """Reduce over all ranks. Collective, also on a rank that has logged nothing.

        Each rank sends a block of fixed size, which begins with a checksum of its names. Ranks that log different
        names detect it from the checksums of this collective, so that no rank waits for the others.

        Raises:
            LoggingError: ranks have logged different names with `sync_dist`. The message says which rank logs what.
        """
        names = sorted(log.synced)
        checksum = float(crc32(repr([(name, log.synced[name].op) for name in names]).encode()))
        own = float(crc32(repr(sorted(log.own)).encode()))
        flags = [
            checksum,
            float(len(names)),
            own,
            float(log.had_batches),
            float(log.nan_step),
            float(log.rows),
            float(log.objects),
        ]
        blocks = [names[start : start + PER_BLOCK] for start in range(0, len(names), PER_BLOCK)] or [[]]
        values: dict[str, float] = {}
        for block in blocks:
            numbers = list(flags)
            for name in block:
                numbers += [float(log.synced[name].value), float(log.synced[name].weight)]
            numbers += [0.0] * (_HEADER + 2 * PER_BLOCK - len(numbers))
            gathered = self._collectives.all_gather(torch.tensor(numbers, dtype=torch.float64))
            header = gathered[:, :_HEADER]
            if bool((header[:, 0] != header[0, 0]).any()):
                values = self._reduce_by_name(log, where)
                break
            for index, name in enumerate(block):
                column = gathered[:, _HEADER + 2 * index : _HEADER + 2 + 2 * index]
                values[name] = _reduce(log.synced[name].op, column[:, 0], column[:, 1])
        headers = header.tolist()
        if len({rank[2] for rank in headers}) > 1:
            values.update(self._of_others(log.own, tuple(int(rank[2]) for rank in headers)))
        most = [int(max(rank[column] for rank in headers)) for column in (5, 6)]
        return ReducedLog(values, tuple(int(rank[4]) for rank in headers), *most)

    def merge_rows(self, rows: Sequence[Mapping[str, PartialReduction]]) -> list[dict[str, float]]:
        """Reduce the rows of single evaluation steps. A row is reduced over the ranks that have it. Collective."""
        everyone: list[Sequence[Mapping[str, PartialReduction]]] = self._collectives.gather_objects(
            list(rows)
        )
        merged = []
        for index in range(max(map(len, everyone))):
            found: dict[str, list[PartialReduction]] = {}
            for theirs in everyone:
                for name, part in (theirs[index] if index < len(theirs) else {}).items():
                    found.setdefault(name, []).append(part)
            merged.append({name: _reduce_parts(parts) for name, parts in found.items()})
        return merged

    def _of_others(self, own: Mapping[str, Any], checksums: tuple[int, ...]) -> dict[str, float]:
        """Return the values that only other ranks have logged, so that rank 0 can write them. Collective.

        Often only rank 0 logs more than the others. Then no values are sent.
        """
        missing = self._missing.get(checksums)
        if missing is None:
            names = self._collectives.gather_objects(sorted(own))
            missing = not set().union(*names) <= set(names[0])
            self._missing[checksums] = missing
        if not missing:
            return {}
        everyone = self._collectives.gather_objects({name: float(value) for name, value in own.items()})
        merged = {name: value for theirs in reversed(everyone) for name, value in theirs.items()}
        return {name: value for name, value in merged.items() if name not in own}

    def _reduce_by_name(self, log: RankLog, where: str) -> dict[str, float]:
        """Reduce if only ranks without data lack names; refuse any other difference."""
        mine = {
            name: PartialReduction(part.op, part.local(), part.weight) for name, part in log.synced.items()
        }
        everyone: list[tuple[bool, dict[str, PartialReduction]]] = self._collectives.gather_objects(
            (log.had_batches, mine)
        )
        expected = max((parts for had, parts in everyone if had), key=len, default={})
        ops = {name: part.op for name, part in expected.items()}
        for had, parts in everyone:
            theirs = {name: part.op for name, part in parts.items()}
            if theirs != ops if had else not theirs.items() <= ops.items():
                _refuse_different_names([sorted(parts) for _, parts in everyone], where)
        reduced = {}
        for name in ops:
            reduced[name] = _reduce_parts([parts[name] for _, parts in everyone if name in parts])
        return reduced


def _reduce_parts(parts: Sequence[PartialReduction]) -> float:
    values = torch.tensor([part.value for part in parts], dtype=torch.float64)
    return _reduce(parts[0].op, values, torch.tensor([part.weight for part in parts]))


def _reduce(op: str, values: torch.Tensor, weights: torch.Tensor) -> float:
    if op == "mean":
        total = float(weights.sum())
        return float((values * weights).sum()) / total if total else 0.0
    if op == "sum":
        return float(values.sum())
    if op == "first":
        return float(values[0])
    return float(values.min() if op == "min" else values.max())


def _refuse_different_names(everyone: list[list[str]], where: str) -> None:
    common = set(everyone[0]).intersection(*everyone)
    only = {rank: sorted(set(theirs) - common) for rank, theirs in enumerate(everyone)}
    differences = "; ".join(f"rank {rank} logs {theirs}" for rank, theirs in only.items() if theirs)
    raise LoggingError(
        f"at {where}, ranks log different values with sync_dist: "
        f"{differences or 'the same names reduced differently'}; "
        "log the same names on every rank, or with sync_dist=False"
    )
