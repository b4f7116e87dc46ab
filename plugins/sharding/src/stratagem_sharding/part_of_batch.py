"""Whether a step runs on a part of a batch now, where collectives would miss its other parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stratagem.errors import CombinationError

_ADVICE: ContextVar[str | None] = ContextVar("part_of_a_batch", default=None)


@contextmanager
def part_of_batch(advice: str | None) -> Iterator[None]:
    """While a step runs on one of several parts of a batch.

    Args:
        advice: what to do to have all parts, for `refuse_in_chunk`; None where there is one part.
    """
    token = _ADVICE.set(advice)
    try:
        yield
    finally:
        _ADVICE.reset(token)


def refuse_in_chunk(called: str) -> None:
    """Refuse a collective of a step that has one part of its batch.

    Args:
        called: name of the collective.

    Raises:
        CombinationError: says what to do, as the strategy that splits batches has it.
    """
    advice = _ADVICE.get()
    if advice is not None:
        raise CombinationError(
            f"a step calls {called} while it has one part of a batch, and the batch's other parts would be missing: "
            f"{advice}"
        )
