"""Refuse collectives in a step that runs on one chunk of its batch, since they would miss the other chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stratagem.errors import CombinationError

_ADVICE: ContextVar[str | None] = ContextVar("part_of_a_batch", default=None)


@contextmanager
def part_of_batch(advice: str | None) -> Iterator[None]:
    """Mark that a step runs on one of several chunks of a batch. A context manager.

    Args:
        advice: for `refuse_in_chunk`: what to do to get the whole batch. None if the batch has a single chunk.
    """
    token = _ADVICE.set(advice)
    try:
        yield
    finally:
        _ADVICE.reset(token)


def refuse_in_chunk(called: str) -> None:
    """Refuse a collective if the step runs on one of several chunks of its batch.

    Args:
        called: name of the collective.

    Raises:
        CombinationError: the step runs on a chunk. The message ends with the strategy's advice.
    """
    advice = _ADVICE.get()
    if advice is not None:
        raise CombinationError(
            f"a step calls {called} while it has one part of a batch, and the batch's other parts would be missing: "
            f"{advice}"
        )
