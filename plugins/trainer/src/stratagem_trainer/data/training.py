"""The training batches of one loader or several, per epoch, and the position at which a resumed run continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Union

from stratagem.errors import DataError
from stratagem.sdk.loops import TrainData
from stratagem_trainer.data.combined_loader import (
    CombinedLoader,
    as_combined,
    combined_length,
    filled,
    side_by_side,
)

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.settings import TrainerSettings

_NEXT_PASS = 2**20
"""Added to the epoch number for each further pass of a loader in an epoch. Runs have fewer epochs than this."""


def train_data(runtime: Runtime, settings: TrainerSettings, loader: Any, seed: int = 0) -> AnyTrainData:
    """Return this rank's training batches. Collective.

    Args:
        runtime: an entered runtime.
        settings: the trainer's settings.
        loader: a loader, several in a collection, which are read as "max_size_cycle", or a `CombinedLoader`.
        seed: for random orders.

    Raises:
        DataError: a loader can't be read.
    """

    def of_one(one: Any) -> TrainData:
        if settings.use_distributed_sampler:
            one = settings.policy.training_loader(one, runtime.collectives.data, seed)
        return TrainData(
            one,
            collectives=runtime.collectives.data,
            seed=seed,
            distributed_sampler=settings.use_distributed_sampler,
        )

    combined = as_combined(loader, "max_size_cycle")
    if combined is None:
        return of_one(loader)
    parts = [of_one(each) for each in combined.flattened]
    if not parts:
        raise DataError(f"fit got an empty {type(loader).__name__} of loaders: give at least one")
    return CombinedTrainData(combined, parts)


@dataclass
class _Pass:
    """One pass over a loader in an epoch. A loader that is restarted makes several."""

    number: int = 0
    """Index of the pass in the epoch."""
    start: int = 0
    """Number of the epoch's batches that were read before this pass."""
    length: int | None = None
    """Number of batches in this pass; None until it has ended."""

    def position(self, done: int) -> int:
        """Return how many batches of this pass are among the first `done` batches of the epoch."""
        read = max(0, done - self.start)
        return read if self.length is None else min(read, self.length)


class CombinedTrainData:
    """Several loaders with the interface of `TrainData`. Each is sharded and restored by its own `TrainData`.

    A loader that restarts within an epoch is read as in a new epoch, so that a shuffled loader gets a new order.

    Args:
        combined: the loaders and the mode.
        parts: this rank's share of each loader, in order.
    """

    def __init__(self, combined: CombinedLoader, parts: list[TrainData]) -> None:
        self._combined, self._parts = combined, parts
        self.num_batches = combined_length([part.num_batches for part in parts], combined.mode)
        self.batch_size = parts[0].batch_size
        self.description = f"{combined.mode} of " + "; ".join(part.description for part in parts)
        self._passes: list[list[_Pass]] = [[] for _ in parts]
        """Passes of each loader in this epoch."""
        self._epoch: int | None = None
        self._read = 0
        """Number of this epoch's batches that were read, including those that were prefetched."""

    last_batch_size = None

    @property
    def has_exact_length(self) -> bool:
        """Whether an epoch has exactly `num_batches`."""
        return all(part.has_exact_length for part in self._parts)

    def epoch(self, epoch: int, done: int = 0, state: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the rest of an epoch; see `TrainData.epoch`."""
        saved = state["parts"] if state is not None and self._can_continue(state, epoch) else None
        self._epoch, self._read = epoch, done
        self._passes = [[] for _ in self._parts]
        begin, was_over = [], []
        for which, part in enumerate(self._parts):
            number, position, its_state = 0, 0, None
            if saved is not None:
                number, its_state = saved[which]["pass"], saved[which]["state"]
                position = part.done_after_resume(its_state) if saved[which]["done"] else 0
            if position:
                self._passes[which].append(_Pass(number, done - position))
            was_over.append(number > 0)
            begin.append(partial(self._begin, which, [(number, position, its_state)]))
        if self._combined.mode == "sequential":
            return self._counted(chain.from_iterable(start() for start in begin))
        batches = side_by_side(begin, self._combined.mode, was_over)
        return self._counted(filled(self._combined.iterables, iter(each)) for each in batches)

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        """Return this rank's position after `done` batches of `epoch`, for a checkpoint."""
        parts = []
        for part, passes in zip(self._parts, self._passes):
            begun = [each for each in passes if each.start < done] if epoch == self._epoch else []
            latest = begun[-1] if begun else _Pass(start=done)
            position = latest.position(done)
            state = part.state(epoch + latest.number * _NEXT_PASS, position)
            parts.append({"pass": latest.number, "done": position, "state": state})
        return {"source": self._combined.mode, "epoch": epoch, "done": done, "parts": parts}

    def resumption(self) -> dict[str, str]:
        """Return what a resumed run doesn't read identically, and why, over all loaders; see `TrainData`."""
        return {what: why for part in reversed(self._parts) for what, why in part.resumption().items()}

    def done_after_resume(self, state: Mapping[str, Any]) -> int:
        """Return how many of this run's batches a saved position has consumed; see `TrainData`."""
        if not self._can_continue(state, state["epoch"]):
            raise DataError(
                f"the checkpoint was written in the middle of an epoch of {_described(state)}, and now there are "
                f"{len(self._parts)} loaders, read by {self._combined.mode}: pass the same "
                "loaders, or a checkpoint from the end of an epoch"
            )
        done = [
            part.done_after_resume(saved["state"]) if saved["done"] else 0
            for part, saved in zip(self._parts, state["parts"])
        ]
        if self._combined.mode == "sequential":
            return sum(done)
        # Of the loaders in their first pass, the longest is still being read.
        return max(each for each, saved in zip(done, state["parts"]) if saved["pass"] == 0)

    def _can_continue(self, state: Mapping[str, Any], epoch: int) -> bool:
        same = state["source"] == self._combined.mode and state["epoch"] == epoch
        return same and len(state.get("parts", ())) == len(self._parts)

    def _begin(self, which: int, first: list[tuple[int, int, Any]]) -> Iterator[Any]:
        """Begin a loader's next pass, or, at the first call in a resumed epoch, continue the interrupted one."""
        passes = self._passes[which]
        number, position, state = first.pop() if first else (passes[-1].number + 1, 0, None)
        if not position:
            passes.append(_Pass(number, self._read))
        assert self._epoch is not None
        batches = self._parts[which].epoch(self._epoch + number * _NEXT_PASS, position, state)
        return self._ending(batches, passes[-1], position)

    def _ending(self, batches: Iterator[Any], its_pass: _Pass, position: int) -> Iterator[Any]:
        count = position
        for batch in batches:
            yield batch
            count += 1
        its_pass.length = count

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._read += 1
            yield batch


AnyTrainData = Union[TrainData, CombinedTrainData]
"""Training batches of one loader or several."""


def _described(state: Mapping[str, Any]) -> str:
    parts = state.get("parts")
    return "one loader" if parts is None else f"{len(parts)} loaders, read by {state['source']}"
