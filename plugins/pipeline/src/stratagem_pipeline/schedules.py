"""Schedules by name: the torch class that runs each, and which rank has which stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratagem import ConfigError


@dataclass(frozen=True)
class Schedule:
    """An order of the forwards and backwards of micro-batches."""

    name: str
    torch_name: str
    """Name that `torch.distributed.pipelining.schedules.get_schedule_class` takes."""
    several: bool = False
    """Whether a rank has several stages."""
    is_v: bool = False
    """Whether stages go down the ranks and up again, so that the first and the last stage are on rank 0."""
    splits_backward: bool = False
    """Whether gradients of inputs and of weights are computed separately."""

    def ranks(self, size: int, per_rank: int) -> list[int]:
        """Return the rank of each stage, for a pipeline of `size` ranks."""
        if self.is_v:
            return [*range(size), *reversed(range(size))]
        return [stage % size for stage in range(size * per_rank)]

    def stages_per_rank(self, wanted: int | None) -> int:
        """Return how many stages each rank has.

        Args:
            wanted: the user's number; None is 2 if the schedule has several stages per rank, else 1.

        Raises:
            ConfigError: the schedule doesn't support that number.
        """
        if wanted is None:
            return 2 if self.several else 1
        if self.is_v and wanted != 2:
            raise ConfigError(
                f"schedule={self.name!r} has exactly 2 stages per rank, and stages_per_rank={wanted}: leave it out"
            )
        if not self.several and wanted != 1:
            several = ", ".join(name for name, each in SCHEDULES.items() if each.several)
            raise ConfigError(
                f"schedule={self.name!r} has 1 stage per rank, and stages_per_rank={wanted}: choose one of {several}"
            )
        if wanted < 1:
            raise ConfigError(f"stages_per_rank={wanted} must be at least 1")
        return wanted

    def torch_class(self) -> Any:
        """Return torch's class of the schedule."""
        from torch.distributed.pipelining.schedules import get_schedule_class

        return get_schedule_class(self.torch_name)

    def check_micro_batches(self, count: int, size: int, stages: int) -> None:
        """Refuse a number of micro-batches that this schedule can't run.

        Raises:
            ConfigError: says which numbers it can run.
        """
        if count < 1:
            raise ConfigError(f"micro_batches={count} must be at least 1")
        if self.name in ("1f1b", "dualpipev") and count < stages:
            raise ConfigError(
                f"schedule={self.name!r} needs at least as many micro-batches as stages, and micro_batches={count} "
                f"for {stages} stages: set micro_batches={stages} or more, or schedule='gpipe'"
            )
        rounds = max(1, count // size)
        if self.name in ("interleaved_1f1b", "interleaved_zero_bubble") and count % rounds:
            raise ConfigError(
                f"schedule={self.name!r} on {size} ranks runs micro-batches in {rounds} equal rounds, and "
                f"micro_batches={count} can't be divided so: set a multiple of {size}"
            )


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("gpipe", "GPipe"),
        Schedule("1f1b", "1F1B"),
        Schedule("looped_bfs", "LoopedBFS", several=True),
        Schedule("interleaved_1f1b", "Interleaved1F1B", several=True),
        Schedule("interleaved_zero_bubble", "InterleavedZeroBubble", several=True, splits_backward=True),
        Schedule("zbv", "ZBVZeroBubble", several=True, is_v=True, splits_backward=True),
        Schedule("dualpipev", "DualPipeV", several=True, is_v=True, splits_backward=True),
    )
}


def schedule_named(name: str) -> Schedule:
    """Find a schedule by its name, or by the name of torch's class.

    Raises:
        ConfigError: there is no such schedule.
    """
    wanted = _normalized(name)
    for schedule in SCHEDULES.values():
        if wanted in (_normalized(schedule.name), _normalized(schedule.torch_name)):
            return schedule
    raise ConfigError(f"schedule={name!r} must be one of {', '.join(SCHEDULES)}: choose one of them")


def _normalized(name: str) -> str:
    return str(name).lower().replace("_", "").replace("-", "").removeprefix("schedule")
