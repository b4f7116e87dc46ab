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
"""Number of batches of an optimizer step, and these batches."""
MicroBatch = tuple[Any, float, bool]
"""A batch, the divisor of its loss, and whether it is the last one of its optimizer step."""
NumberedBatch = tuple[int, MicroBatch]
"""A micro-batch with its index within the epoch."""


def windows(batches: Iterator[Any], size: int, limit: int | None, *, read_ahead: bool) -> Iterator[Window]:
    """Yield the number of batches of each optimizer step, and the batches.

    The last step of an epoch may have fewer batches. Their number must be known at the step's first batch: losses are
    divided by it, and gradients are reduced over ranks with the last batch.

    Args:
        batches: the remaining batches of an epoch.
        size: batches per optimizer step.
        limit: maximum number of batches to read; None reads all.
        read_ahead: read all batches of a step before the first is used, if the epoch's number of batches isn't
            certain. If False, `limit` is the exact number, and batches are read one by one.
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
    """Yield the remaining micro-batches of an epoch from the batches in `iterator`.

    Raises:
        DataError: the loader yielded fewer batches than its length.
    """
    if state.micro_batches == 1:
        for batch in islice(iterator, _limit(state, data.train)):
            yield batch, 1, True
        return
    # A closure evaluates a whole window, so all of its batches must have been read.
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
    """Return the maximum number of remaining batches; None if the loader's length is only a guess."""
    limit = state.num_train_batches
    if limit is None or (not data.has_exact_length and state.settings.limit("train") is None):
        return None
    return limit - state.progress.batch
