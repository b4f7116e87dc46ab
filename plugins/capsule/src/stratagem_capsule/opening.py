"""`open_step`: finds a kept step in a run's folder, and checks that all it needs is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stratagem_capsule.errors import CapsuleError
from stratagem_capsule.files import (
    FOLDER,
    Base,
    Event,
    Segment,
    attempts_in,
    read_batches,
    read_events,
    read_segment,
    segments_in,
    step_of,
)


@dataclass(frozen=True)
class KeptStep:
    """A step that can be run again; picklable, and the same on every rank."""

    step: int
    """Optimizer step, from 1."""
    folders: Sequence[Path]
    """Segments from the one whose base is used up to the step's own, in order."""
    segment: Segment
    """The first of them."""
    events: Sequence[Event]
    """Why the step was kept."""
    losses: Sequence[Sequence[float | None]]
    """For each rank, those of the step's micro-batches in the run; None where there is none."""
    crosses_epochs: bool
    """Whether an epoch ends among the steps from the base up to the step."""

    @property
    def base(self) -> Base:
        """What its segments start from."""
        assert self.segment.base is not None
        return self.segment.base

    @property
    def data_world_size(self) -> int:
        """How many ranks read different data."""
        return len(set(self.segment.data_ranks))

    def records(self, data_rank: int) -> Iterator[dict[str, Any]]:
        """Yield the micro-batches of a part of the data, from the base up to the step; reads one file at a time."""
        rank = self.segment.data_ranks.index(data_rank)
        for record in _records(self.folders, rank):
            if "batch" in record and record["step"] <= self.step:
                yield record


def open_step(run: str | os.PathLike[str], step: int | None = None) -> KeptStep:
    """Return a kept step of a run.

    Args:
        run: the run's folder.
        step: the optimizer step; None takes the only one that was kept for a reason.

    Raises:
        CapsuleError: there is none, or something of it is missing, damaged, or of another version of torch.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise CapsuleError(f"{folder} isn't a run's folder: there is no such folder")
    attempts = attempts_in(folder)
    if not attempts:
        raise CapsuleError(
            f"{folder} has no folder {FOLDER!r}: nothing was kept there; train with --use capsule, and note that a "
            "checkpoint and the end of a fit remove what isn't kept"
        )
    events = {
        attempt: [event for each in segments_in(attempt) for event in read_events(each)]
        for attempt in attempts
    }
    if step is None:
        step = _only_step(folder, [event.step for each in events.values() for event in each])
    # The start of the run that has a reason to keep the step goes before a newer one that only has its batches.
    newest_first = sorted(
        attempts,
        key=lambda each: (any(event.step == step for event in events[each]), int(each.name)),
        reverse=True,
    )
    failure: CapsuleError | None = None
    for attempt in newest_first:
        found = [each for each in segments_in(attempt) if step_of(each) < step]
        if found:
            try:
                return _opened(found, step, [event for event in events[attempt] if event.step == step])
            except CapsuleError as error:
                failure = failure or error
    raise failure or CapsuleError(f"step {step} isn't kept in {folder}: {_kept_text(folder)}")


def _opened(found: list[Path], step: int, events: list[Event]) -> KeptStep:
    folders, segment = _from_base(found, step)
    if segment.torch != torch.__version__:
        raise CapsuleError(
            f"step {step} was trained with torch {segment.torch}, and this is torch {torch.__version__}, which may "
            f"compute other numbers: install torch {segment.torch} to replay it"
        )
    steps: list[list[tuple[int, int]]] = []
    losses: list[list[float | None]] = []
    for rank in range(segment.world_size):
        if not any((each / f"rank-{rank}").is_dir() for each in folders):
            raise CapsuleError(
                f"{folders[-1]} lacks the batches of rank {rank}: a capsule has those of all ranks"
            )
        windows, own = _summary(folders, rank, step)
        steps.append(windows)
        losses.append(own)
    expected = set(range(segment.step + 1, step + 1))
    for rank, windows in enumerate(steps):
        missing = sorted(expected - {each for each, _ in windows})
        if missing:
            raise CapsuleError(
                f"step {step} isn't kept: rank {rank} has no batches of step {missing[0]}, which starts from "
                f"{'the beginning of the run' if not segment.step else f'step {segment.step}'}"
            )
    return KeptStep(
        step=step,
        folders=folders,
        segment=segment,
        events=events,
        losses=losses,
        crosses_epochs=len({epoch for windows in steps for _, epoch in windows}) > 1,
    )


def _from_base(found: list[Path], step: int) -> tuple[list[Path], Segment]:
    """Return the segments from the latest one whose base is there."""
    missing = ""
    for index in range(len(found) - 1, -1, -1):
        segment = read_segment(found[index])
        base = segment.base
        if base is not None and (base.kind == "start" or os.path.isdir(base.path)):
            return found[index:], segment
        if base is not None:
            missing = missing or base.path
    if missing:
        raise CapsuleError(f"the checkpoint {missing}, from which step {step} starts, is missing")
    raise CapsuleError(
        f"step {step} starts from no checkpoint that was kept: checkpoints in a folder are, and those in memory or "
        "at a URL aren't"
    )


def _summary(
    folders: Sequence[Path], rank: int, step: int
) -> tuple[list[tuple[int, int]], list[float | None]]:
    """Return (step, epoch) of each micro-batch up to a step, and the losses of the step's."""
    windows: list[tuple[int, int]] = []
    own: dict[int, float | None] = {}
    current = 0
    for record in _records(folders, rank):
        if "batch" in record:
            current = record["step"]
            if current <= step:
                windows.append((current, record["epoch"]))
            if current == step:
                own[record["index"]] = None
        elif current == step and record["loss_of"] in own:
            own[record["loss_of"]] = record["loss"]
    return windows, list(own.values())


def _records(folders: Sequence[Path], rank: int) -> Iterator[dict[str, Any]]:
    for folder in folders:
        for path in sorted((folder / f"rank-{rank}").glob("*.batches")):
            yield from read_batches(path)


def _only_step(run: Path, steps: list[int]) -> int:
    if len(set(steps)) == 1:
        return steps[0]
    raise CapsuleError(f"give --step: {_kept_text(run)}")


def _kept_text(run: Path) -> str:
    kept = []
    for attempt in attempts_in(run):
        for folder in segments_in(attempt):
            kept += [f"step {event.step} ({event.reason})" for event in read_events(folder)]
    return (
        f"{run} has {', '.join(dict.fromkeys(kept))}"
        if kept
        else f"{run} has no step that raised or isn't finite"
    )
