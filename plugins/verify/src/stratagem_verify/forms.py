"""Find the form in which one process can repeat the ranks' training, and whether the results are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stratagem_verify.compare import (
    Apart,
    gradients_apart,
    losses_apart,
    mean,
    mean_losses,
    weights_apart,
)
from stratagem_verify.observed import Seen
from stratagem_verify.runs import Form, Repetition
from stratagem_verify.session import NotRepeatedError, Session, data_ranks

Compare = Callable[[Session, Sequence[Seen], Seen, "Seen | None"], "Apart | None"]


@dataclass(frozen=True)
class Tried:
    """A run under the strategy, and the form in which one process has the same results."""

    ranks: Sequence[Seen]
    source: str
    form: Form | None
    apart: Apart | None
    """Difference from one process with joined batches, or else with batches in turn; None if there is none."""
    why_not: str = ""
    """Why the batches can't be joined."""


def try_forms(
    session: Session, ranks: Sequence[Seen], source: str, compare: Compare, quiet: bool = False
) -> Tried:
    """Return the first form in which one process has the ranks' results."""
    forms: list[Form] = ["whole"]
    if data_ranks(ranks) > 1 and not ranks[0].manual:
        forms.append("ranks")
    apart, why_not = None, ""
    for form in forms:
        how = Repetition(source, form, ranks[0].steps, source.startswith("gradients"), quiet=quiet)
        try:
            apart = apart_from(session, ranks, how, compare)
        except NotRepeatedError as error:
            why_not = str(error)
            continue
        if apart is None:
            return Tried(ranks, source, form, None, why_not)
    return Tried(ranks, source, None, apart, why_not)


def apart_from(session: Session, ranks: Sequence[Seen], how: Repetition, compare: Compare) -> Apart | None:
    """Return the largest difference between ranks and one process beyond rounding errors; None if there is none."""
    alone = session.repeated(how)
    found = compare(session, ranks, alone, None)
    # Measure the effect of rounding errors only if the results differ, because it needs another run.
    return compare(session, ranks, alone, noisy(session, how)) if found is not None else None


def noisy(session: Session, how: Repetition) -> Seen:
    """Return the results of one process that starts with rounded weights."""
    return session.repeated(replace(how, noise=session.plan.subject.tolerance(session.plan.precision) / 10))


def by_losses(session: Session, ranks: Sequence[Seen], alone: Seen, noisy: Seen | None) -> Apart | None:
    """Compare losses; if the module optimizes manually, weights as well."""
    count = len(alone.losses) // max(1, len(ranks[0].losses))
    noise = by_step(noisy, count) if noisy is not None else None
    found = losses_apart(mean_losses(ranks), by_step(alone, count), noise, session.tolerance)
    if found is None and ranks[0].manual:
        weights = by_weights(session, ranks, alone, noisy)
        return Apart(weights[0], weights[1], 0.0) if weights is not None else None
    return found


def by_gradients(session: Session, ranks: Sequence[Seen], alone: Seen, noisy: Seen | None) -> Apart | None:
    """Compare the changes of weights in a step of plain SGD."""
    first = ranks[0]
    noise = noisy.weights if noisy is not None else None
    return gradients_apart(first.weights, alone.weights, first.start, noise, first.trained, session.tolerance)


def by_weights(
    session: Session, ranks: Sequence[Seen], alone: Seen, noisy: Seen | None
) -> tuple[str, float] | None:
    """Compare weights at the end. Return the tensor with the largest relative difference, and that difference."""
    first = ranks[0]
    left_out = first.normalization if first.batch_norms else set()
    if data_ranks(ranks) > 1:
        left_out = left_out | first.buffers.keys()  # a separate check compares them between ranks
    names = [name for name in first.weights if name not in left_out and name in alone.weights]
    return weights_apart(
        first.weights, alone.weights, first.start, noisy.weights if noisy is not None else None, names
    )


def by_step(alone: Seen, ranks: int) -> list[float | None]:
    """Return the mean losses over ranks, whose batches came one after the other."""
    return [mean(alone.losses[at : at + ranks]) for at in range(0, len(alone.losses), ranks)]
