"""Check that resumption, validation and checkpoints are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stratagem_testing.workers import RankError

from stratagem_verify import runs
from stratagem_verify.compare import LEAST, losses_apart, unequal, weights_apart
from stratagem_verify.observed import Seen
from stratagem_verify.session import Finding, Session, reason
from stratagem_verify.state import differing, shown

ROUNDED = 1e-3
"""Allowed difference between weights, relative to their distance from the start. Lost state makes a larger one."""

NOT_REPEATABLE = (
    "not compared bitwise, because the same run, started twice, has different results: something draws from a "
    "generator without a seed, or an operation isn't deterministic"
)


def resume(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Check that a run that is resumed from its middle is bitwise equal to the uninterrupted one."""
    first = ranks[0]
    if not first.saved_at:
        return Finding("resume", "note", "no checkpoint could be written in the middle")
    path = session.plan.path("train-middle")
    session.fresh()
    try:
        resumed = session.under("resuming", runs.resume, "resumed", path, sorted(first.outside))
    except RankError as error:
        return Finding("resume", "wrong", f"from step {first.saved_at}, it fails: {reason(error)}")
    where = _first_unlike(ranks, resumed)
    if where is None:
        return Finding(
            "resume",
            "right",
            f"from step {first.saved_at} to {first.steps}: losses and weights are bitwise equal",
        )
    lost = differing(first.outside, resumed[0].outside)
    if lost:
        name = lost[0]
        return Finding(
            "resume",
            "wrong",
            f"{where}: {name!r} was {shown(first.outside[name])} at the checkpoint, and is "
            f"{shown(resumed[0].outside[name])} after loading, because the state dict lacks it: use register_buffer, "
            "or get_extra_state and set_extra_state",
        )
    if _only_rounded(ranks, resumed):
        return Finding("resume", "note", f"from step {first.saved_at}, equal up to rounding: {where}")
    if _first_unlike(ranks, session.again(), whole=True) is not None:
        return Finding("resume", "note", NOT_REPEATABLE)
    if any(one != two for one, two in first.samples):
        where += ": the dataset has its own generator, which checkpoints don't save"
    return Finding("resume", "wrong", where)


def validation(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Check that training with validations has the same result as training without."""
    first = ranks[0]
    if not first.has_validation:
        return Finding("validation", "right", "there is none")
    interval = 2 * session.plan.accumulate
    fits = first.num_batches is None or interval <= first.num_batches
    try:
        validated = session.under(
            "training with validation", runs.train_with_validation, "validated", interval if fits else None
        )
    except RankError as error:
        return Finding("validation", "wrong", f"fails within training: {reason(error)}")
    changed = [name for seen in validated for name in seen.validation]
    if changed:
        return Finding(
            "validation",
            "wrong",
            f"changes {changed[0]!r} of the module: training continues with another model",
        )
    where = _first_unlike(ranks, validated, whole=True)
    if where is None:
        return Finding("validation", "right", "training with it is bitwise training without")
    if _first_unlike(ranks, session.again(), whole=True) is not None:
        return Finding("validation", "note", NOT_REPEATABLE)
    return Finding(
        "validation",
        "wrong",
        f"changes the training: with it, {where}; don't change the state of the module or its data in validation",
    )


def evaluation(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Check that validation has one process's metrics."""
    if not ranks[0].has_validation:
        return Finding("evaluation", "right", "there is none")
    path = session.plan.path("train-end")
    try:
        ours = session.under("validating", runs.validate, "validate", path)
        theirs = session.alone("validating in one process", runs.validate, "validate-alone", path, True)
    except RankError as error:
        return Finding("evaluation", "wrong", f"fails: {reason(error)}")
    limit = 10 * session.tolerance
    for rank, seen in enumerate(ours):
        for name, value in theirs.metrics.items():
            own = seen.metrics.get(name, math.nan)
            if abs(own - value) <= limit * max(abs(value), 1e-3) or own == value:
                continue
            if theirs.validation_draws:
                return Finding(
                    "evaluation",
                    "note",
                    "draws random numbers, so metrics can't be compared with one process's",
                )
            return Finding(
                "evaluation",
                "wrong",
                f"{name} is {own:.6g} on rank {rank}, but {value:.6g} in one process with the same weights: log "
                "means over samples, with sync_dist, and weight each rank's batch by its size (batch_size=)",
            )
    return Finding("evaluation", "right", f"{', '.join(theirs.metrics) or 'no metric'} as in one process")


def checkpoint(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Check that one process can load the strategy's checkpoints, and the strategy those of one process."""
    first, found = ranks[0], "one process loads it, with equal weights"
    wrong = unequal(
        {name: first.own[name] for name in first.own.keys() & first.weights.keys()}, first.weights
    )
    wrong = [name for name in wrong if name in first.own]
    if wrong:
        return Finding("checkpoint", "wrong", f"the checkpoint's {wrong[0]!r} isn't that of the first rank")
    try:
        alone = session.alone(
            "loading in one process", runs.load, "loaded", session.plan.path("train-end"), True
        )
    except RankError as error:
        return Finding("checkpoint", "wrong", f"one process can't load it: {reason(error)}")
    wrong = unequal(alone.own, first.weights)
    if wrong:
        return Finding("checkpoint", "wrong", f"one process loads another {wrong[0]!r} from it")
    if "resharding" not in session.plan.subject.features and len(ranks) > 1:
        return Finding(
            "checkpoint", "note", f"{found}; the strategy doesn't declare that it loads others (resharding)"
        )
    try:
        back = session.under(
            "loading one process's", runs.load, "loaded-back", session.plan.path("loaded-end")
        )
    except RankError as error:
        return Finding("checkpoint", "wrong", f"one process's can't be loaded: {reason(error)}")
    for rank, seen in enumerate(back):
        wrong = unequal(seen.weights, first.weights)
        if wrong:
            return Finding(
                "checkpoint", "wrong", f"from one process's, rank {rank} loads another {wrong[0]!r}"
            )
    return Finding("checkpoint", "right", f"{found}, and the strategy loads one process's")


def _first_unlike(ranks: Sequence[Seen], others: Sequence[Seen], whole: bool = False) -> str | None:
    """Return the first difference between two runs as text; None if there is none."""
    for rank, (one, other) in enumerate(zip(ranks, others)):
        skip = 0 if whole else one.batches_at
        for index, (mine, theirs) in enumerate(zip(one.losses[skip:], other.losses)):
            if mine != theirs and not (
                mine is not None and theirs is not None and mine != mine and theirs != theirs
            ):
                return (
                    f"the loss of micro-batch {skip + index + 1} on rank {rank} is {_number(theirs)}, but was "
                    f"{_number(mine)} in the first run"
                )
        if one.steps != other.steps or len(one.losses) - skip != len(other.losses):
            return f"rank {rank} makes {other.steps} steps, but made {one.steps} in the first run"
    apart = unequal(others[0].weights, ranks[0].weights)
    return f"{apart[0]!r} at the end isn't bitwise equal to that of the first run" if apart else None


def _only_rounded(ranks: Sequence[Seen], others: Sequence[Seen]) -> bool:
    """Return whether runs differ by no more than sums in another order do."""
    first, other = ranks[0], others[0]
    if first.weights.keys() != other.weights.keys():
        return False
    apart = [
        losses_apart(later.losses, one.losses[-len(later.losses) :], None, LEAST)
        for one, later in zip(ranks, others)
        if later.losses
    ]
    weights = weights_apart(other.weights, first.weights, first.start, None, first.weights, ROUNDED)
    return weights is None and not any(apart)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
