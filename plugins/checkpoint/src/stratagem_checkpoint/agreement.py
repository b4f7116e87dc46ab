"""Steps that fail on every rank when they fail on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from stratagem import Collectives

T = TypeVar("T")


class _Failure(NamedTuple):
    message: str

    def error(self) -> CheckpointError:
        return CheckpointError(self.message)


def on_every_rank(collectives: Collectives, action: Callable[[], T]) -> list[T]:
    """Run `action` on every rank and return all ranks' picklable results, in the order of ranks.

    Collective.

    Raises:
        CheckpointError: `action` failed on a rank. Every rank gets the message of the lowest rank that
            failed.
    """
    cause: Exception | None = None
    try:
        outcome: T | _Failure = action()
    except Exception as error:
        cause, outcome = error, _failure(error, collectives.rank)
    outcomes: list[T | _Failure] = collectives.gather_objects(outcome)
    results: list[T] = []
    for each in outcomes:
        if isinstance(each, _Failure):
            raise each.error() from cause
        results.append(each)
    return results


def on_first_rank(collectives: Collectives, action: Callable[[], T]) -> T:
    """Run `action` on rank 0 alone and return its picklable result on every rank.

    Collective.

    Raises:
        CheckpointError: `action` failed; the same message on every rank.
    """
    cause: Exception | None = None
    outcome: T | _Failure | None = None
    if collectives.rank == 0:
        try:
            outcome = action()
        except Exception as error:
            cause, outcome = error, _failure(error, 0)
    # In a list, so that a tensor isn't broadcast as a tensor, but as an object.
    (agreed,) = collectives.broadcast([outcome], src=0)
    if isinstance(agreed, _Failure):
        raise agreed.error() from cause
    result: T = agreed
    return result


def _failure(error: Exception, rank: int) -> _Failure:
    if isinstance(error, CheckpointError):
        return _Failure(str(error))
    return _Failure(f"rank {rank} failed with {type(error).__name__}: {error}")
