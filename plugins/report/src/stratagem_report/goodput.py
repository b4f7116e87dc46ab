"""How a run spent its wall time, in parts that add up to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from stratagem_report.phases import (
    CHECKPOINT,
    COMMUNICATION,
    COMPUTE,
    DATA,
    END,
    LOAD,
    OTHER,
    START,
    VALIDATION,
)
from stratagem_report.reading import RankRecord, RunRecord

PARTS: tuple[str, ...] = (
    "compute",
    "communication",
    "waiting for data",
    "other",
    "validation",
    "checkpoints",
    "start and end",
    "loading",
    "lost work",
    "restarts",
)
"""Parts, in the order of the page. "lost work" is steps that a restart repeated. "restarts" is the time from one
attempt's end to the next one's first step."""

_OF_PHASE = {
    **dict.fromkeys(COMPUTE, "compute"),
    COMMUNICATION: "communication",
    DATA: "waiting for data",
    OTHER: "other",
    VALIDATION: "validation",
    CHECKPOINT: "checkpoints",
    START: "start and end",
    END: "start and end",
    LOAD: "loading",
}


@dataclass
class Goodput:
    """Seconds of each part: means over the ranks."""

    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @property
    def wall_s(self) -> float:
        """The run's wall time: the sum of its parts."""
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """The share of the wall time that trained the model, from 0 to 1."""
        return self.parts["compute"] / self.wall_s if self.wall_s else 0.0


def goodput(run: RunRecord) -> Goodput:
    """Add up all attempts of a run. The time between a successful attempt and the next one isn't part of the run."""
    total = Goodput()
    for index, (ranks, kept) in enumerate(zip(run.attempts, kept_steps(run))):
        follows_failure = index > 0 and not is_done(run.attempts[index - 1])
        each = [_parts_of(rank, kept, follows_failure) for rank in ranks]
        for name in PARTS:
            total.parts[name] += fmean(parts[name] for parts in each)
        if follows_failure:
            ended = max(rank.began + rank.wall_ns / 1e9 for rank in run.attempts[index - 1])
            total.parts["restarts"] += max(0.0, fmean(rank.began for rank in ranks) - ended)
    return total


def is_done(ranks: list[RankRecord]) -> bool:
    """Whether an attempt succeeded on all its ranks."""
    return all(rank.end == "done" for rank in ranks)


def kept_steps(run: RunRecord) -> Iterator[int | None]:
    """Yield, for each attempt, how many of its steps the next one resumed from; None if all count, or if unknown."""
    for ranks, after in zip(run.attempts, [*run.attempts[1:], None]):
        if after is None or is_done(ranks):
            yield None
            continue
        saved = {event["path"]: event["step"] for event in ranks[0].events if event["event"] == "saved"}
        loaded = [event["path"] for event in after[0].events if event["event"] == "loaded"]
        if not loaded:
            yield 0
        else:
            # If the checkpoint is from an earlier attempt, all steps of this one are repeated.
            yield int(saved.get(loaded[0], 0))


def _parts_of(rank: RankRecord, kept: int | None, follows_failure: bool) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    steps = 0
    for row in rank.rows:
        steps += row.steps
        is_lost = kept is not None and steps > kept
        for phase, ns in enumerate(row.ns):
            name = _OF_PHASE[phase]
            if follows_failure and name in ("start and end", "loading"):
                name = "restarts"
            elif is_lost and name not in ("start and end", "loading"):
                name = "lost work"
            parts[name] += ns / 1e9
    return parts
