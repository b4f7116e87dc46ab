"""The batches of each optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from stratagem.errors import DataError

if TYPE_CHECKING:
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.data.training import AnyTrainData
    from stratagem_trainer.stage.state import StageState

Window = tuple[int, Iterable[Any]]
"""How many batches an optimizer step has, and these batches."""
MicroBatch = tuple[Any, float, bool]
"""A batch, by what its loss is divided, and whether it is the last one of its optimizer step."""
NumberedBatch = tuple[int, MicroBatch]
"""With its index within the epoch."""


def windows(batches: Iterator[Any], size: int, limit: int | None, *, read_ahead: bool) -> Iterator[Window]:
    """Yield the batches of each optimizer step, and how many they are.

    The last one may have fewer: its gradients are divided by their number, and reduced over ranks with its
    last batch. So the number must be known with the window's first batch.

    Args:
        batches: what is left of an epoch.
        size: batches per optimizer step.
        limit: read at most this many; None reads all.
        read_ahead: read a whole window before its first batch is used, where their number isn't
            known for sure. Otherwise `limit` is their exact number, and batches are read one by one.
    """
    if read_ahead or limit is None:
        limited = islice(batches, limit)
        while window := list(islice(limited, size)):
            yield len(window), window
    else:
        for start in range(0, limit, size):
            count = min(size, limit - start)
            yield count, islice(batches, count)


def micro_batches(state: StageState, data: FitData, iterator: Iterator[Any]) -> Iterator[MicroBatch]:
    """Yield what is left of an epoch, of whose batches `iterator` gives those that weren't trained on.

    Raises:
        DataError: the loader gave fewer than it said.
    """
    if state.micro_batches == 1:
        for batch in islice(iterator, _limit(state, data.train)):
            yield batch, 1, True
        return
    # A closure evaluates a whole window, which must be there then.
    read_ahead = not data.train.has_exact_length or state.wants_closure
    limit = _limit(state, data.train)
    for size, window in windows(iterator, state.micro_batches, limit, read_ahead=read_ahead):
        first = state.batch_idx
        share = data.last_share if first + size == data.train.num_batches else 1.0
        divisors = state.settings.policy.divisors(size, state.micro_batches, share)
        given = 0
        for given, batch in enumerate(window, 1):
            yield batch, divisors[given - 1], given == size
        if given != size:
            raise DataError(
                f"the loader was to give {state.num_train_batches} batches and gave {first + given}: let its len() "
                "say what it gives"
            )


def _limit(state: StageState, data: AnyTrainData) -> int | None:
    """How many batches are left at most; None where a loader whose length is a guess ends where it ends."""
    limit = state.num_train_batches
    if limit is None or (not data.has_exact_length and state.settings.limit("train") is None):
        return None
    return limit - state.progress.batch
