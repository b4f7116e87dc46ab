"""The batches of each optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.data.training import AnyTrainData
    from stratagem_trainer.stage.state import StageState

Window = tuple[int, Iterable[Any]]
"""How many batches an optimizer step has, and these batches."""


def windows(batches: Iterator[Any], size: int, limit: int | None, *, read_ahead: bool) -> Iterator[Window]:
    """Yield the batches of each optimizer step, and how many they are.

    The last one may have fewer: its gradients are divided by their number, and reduced over ranks with its
    last batch. So the number must be known with the window's first batch.

    Args:
        batches: what is left of an epoch.
        size: batches per optimizer step.
        limit: read no more than so many; None reads all.
        read_ahead: read a whole window before its first batch is used, where nobody knows for sure how
            many there are. Otherwise `limit` is their exact number, and batches are read one by one.
    """
    if read_ahead or limit is None:
        limited = islice(batches, limit)
        while window := list(islice(limited, size)):
            yield len(window), window
    elif size == 1:
        for batch in islice(batches, limit):
            yield 1, (batch,)
    else:
        for start in range(0, limit, size):
            count = min(size, limit - start)
            yield count, islice(batches, count)


def divisors(state: StageState, data: FitData, size: int) -> Sequence[float]:
    """Return by what the loss of each micro-batch of the step that begins is divided.

    By their number; an epoch's smaller last one counts by its samples where `last_share` says so.
    """
    if state.settings.rules.divides_by_whole_window:
        return [state.micro_batches] * size
    share = data.last_share
    if share == 1.0 or state.batch_idx + size != data.train.num_batches:
        return [size] * size
    whole = size - 1 + share
    return [*[whole] * (size - 1), whole / share]


def single_batches(state: StageState, data: AnyTrainData, iterator: Iterator[Any]) -> Iterator[Any] | None:
    """Yield what is left of an epoch whose batches are a step each; None where a step has several, or a closure."""
    if state.micro_batches != 1 or state.wants_closure:
        return None
    return islice(iterator, _limit(state, data))


def epoch_windows(state: StageState, data: AnyTrainData, iterator: Iterator[Any]) -> Iterator[Window]:
    """Yield what is left of an epoch, of whose batches `iterator` gives those that weren't trained on."""
    read_ahead = not data.has_exact_length or state.wants_closure
    return windows(iterator, state.micro_batches, _limit(state, data), read_ahead=read_ahead)


def _limit(state: StageState, data: AnyTrainData) -> int | None:
    """How many batches are left at most; None where a loader whose length is a guess ends where it ends."""
    limit = state.num_train_batches
    if limit is None or (not data.has_exact_length and state.settings.limit("train") is None):
        return None
    return limit - state.progress.batch
