"""Whether data, buffers, resumption, validation and checkpoints are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stratagem_testing.verification import runs
from stratagem_testing.verification.compare import unequal, weights_apart
from stratagem_testing.verification.observed import Seen
from stratagem_testing.verification.runs import Repetition
from stratagem_testing.verification.session import Finding, NotRepeatedError, Session, reason
from stratagem_testing.verification.state import differing, shown
from stratagem_testing.workers import RankError

NOT_REPEATABLE = (
    "not compared bit by bit, since the same run, started twice, comes to different numbers: something draws from a "
    "generator without a seed, or an operation isn't deterministic"
)


def data(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Whether ranks read different samples of the same data."""
    for index, digests in enumerate(zip(*(seen.samples for seen in ranks))):
        if len({first for first, _ in digests}) > 1:
            other = next(rank for rank, pair in enumerate(digests) if pair[0] != digests[0][0])
            return Finding(
                "data",
                "wrong",
                f"sample {index + 1} of those looked at differs between rank 0 and rank {other}, though all generators "
                "had the same seed: the dataset shuffles itself or draws by rank, so that ranks share "
                "out different data; let the sampler shuffle",
            )
    first = {seen.data_rank: seen for seen in ranks}
    repeats = len(set(ranks[0].batch_digests)) == 1
    if len(first) > 1 and not repeats and len({tuple(seen.batch_digests) for seen in first.values()}) == 1:
        return Finding(
            "data",
            "wrong",
            f"all {len(first)} ranks read the same batches: let each read its own part, by a DataLoader over a "
            "map-style dataset, or by self.trainer.global_rank",
        )
    own = sum(one != two for one, two in ranks[0].samples)
    if own:
        return Finding(
            "data",
            "note",
            "a sample that is read twice from the same seed differs: the dataset has a generator of its own, which "
            "no checkpoint keeps",
        )
    if not ranks[0].samples:
        return Finding("data", "right", f"{len(first)} of {len(first)} ranks read batches of their own")
    return Finding(
        "data", "right", f"each of {len(first)} ranks reads its own part of a dataset that is the same on all"
    )


def buffers(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Whether buffers are equal on all ranks."""
    first = ranks[0]
    if not first.buffers:
        return Finding("buffers", "right", "there are none")
    apart: dict[str, tuple[Tensor, Tensor]] = {}
    for seen in ranks[1:]:
        for name, value in first.buffers.items():
            other = seen.buffers.get(name)
            if other is not None and value.shape == other.shape and not _close(value, other):
                apart.setdefault(name, (value, other))
    own = [name for name in apart if name not in first.normalization]
    rest = [name for name in first.buffers if name not in first.normalization and name in first.weights]
    if not own and session.form == "whole" and len({seen.data_rank for seen in ranks}) > 1:
        alone = session.repeated(Repetition("train", "whole", first.steps))
        found = weights_apart(first.weights, alone.weights, first.start, None, rest)
        if found is not None:
            own, apart[found[0]] = [found[0]], (first.weights[found[0]], alone.weights[found[0]])
            return Finding(
                "buffers",
                "wrong",
                f"{found[0]!r} isn't what one process comes to, {shown(_largest(apart[found[0]][0]))} and "
                f"{shown(_largest(apart[found[0]][1]))} at most: it is updated from one rank's data; use "
                "self.trainer.collectives.all_reduce",
            )
    if own:
        name = own[0]
        one, other = apart[name]
        return Finding(
            "buffers",
            "wrong",
            f"{name!r} differs between ranks, {shown(_largest(one))} and {shown(_largest(other))} at most: each "
            "updates it from its own data, and a checkpoint has the first rank's; update it with self.trainer."
            "collectives.all_reduce",
        )
    if apart:
        return Finding(
            "buffers",
            "note",
            f"{len(apart)} running statistics of normalization layers differ between ranks, by definition, and a "
            "checkpoint has the first rank's: torch.nn.SyncBatchNorm keeps them equal",
        )
    return Finding("buffers", "right", f"{len(first.buffers)} equal on all {len(ranks)} ranks")


def optimizers(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Whether the optimizers have the module's parameters."""
    alone = None
    for form in ("whole", "ranks", "same"):
        try:
            alone = session.repeated(Repetition("train", form, ranks[0].steps))  # type: ignore[arg-type]
            break
        except NotRepeatedError:
            continue
    if alone is None:
        return Finding("optimizers", "note", "not looked at, since one process can't repeat the steps")
    if alone.foreign:
        return Finding(
            "optimizers",
            "wrong",
            f"configure_optimizers gives {alone.foreign} tensors that aren't the module's parameters, as copies are: "
            "they are stepped, and the module isn't; pass self.parameters()",
        )
    still = [
        name
        for name in alone.trained
        if name in alone.weights and torch.equal(alone.weights[name], ranks[0].start[name])
    ]
    if still and len(still) == len(alone.trained):
        return Finding(
            "optimizers",
            "wrong",
            f"no parameter changes in {alone.steps} steps: configure_optimizers has others than those that the loss "
            "depends on",
        )
    if alone.without_optimizer:
        return Finding(
            "optimizers",
            "note",
            f"{len(alone.without_optimizer)} parameters require gradients and are in no optimizer, as "
            f"{sorted(alone.without_optimizer)[0]!r}: freeze them by requires_grad_(False), or add them",
        )
    if still:
        return Finding(
            "optimizers",
            "note",
            f"{len(still)} of {len(alone.trained)} parameters never changed, as {still[0]!r}",
        )
    return Finding(
        "optimizers", "right", f"all {len(alone.trained)} trained parameters are in one, and change"
    )


def resume(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Whether a run that goes on from a checkpoint in the middle is bitwise one that wasn't interrupted."""
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
            f"{shown(resumed[0].outside[name])} after loading, since the state dict lacks it: use register_buffer, "
            "or get_extra_state and set_extra_state",
        )
    if _first_unlike(ranks, session.again(), whole=True) is not None:
        return Finding("resume", "note", NOT_REPEATABLE)
    if any(one != two for one, two in first.samples):
        where += ": the dataset has a generator of its own, which no checkpoint keeps"
    return Finding("resume", "wrong", where)


def validation(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Whether training with validations on the way is training without."""
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
            f"changes {changed[0]!r} of the module: training goes on with another model",
        )
    where = _first_unlike(ranks, validated, whole=True)
    if where is None:
        return Finding("validation", "right", "training with it is bitwise training without")
    if any(seen.validation_draws for seen in validated):
        return Finding(
            "validation",
            "wrong",
            f"draws from the generators that training uses, so that training depends on it: {where}; draw from a "
            "torch.Generator of its own",
        )
    if _first_unlike(ranks, session.again(), whole=True) is not None:
        return Finding("validation", "note", NOT_REPEATABLE)
    return Finding(
        "validation",
        "wrong",
        f"changes the training: with it, {where}; let neither it nor its data draw from the generators that training "
        "uses, nor change what the module keeps",
    )


def evaluation(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Whether validation gives one process's metrics."""
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
                f"{name} is {own:.6g} on rank {rank}, and {value:.6g} in one process on the same weights: log means "
                "over samples, with sync_dist, and let each rank's batch count by its size (batch_size=)",
            )
    return Finding("evaluation", "right", f"{', '.join(theirs.metrics) or 'no metric'} as of one process")


def checkpoint(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Whether checkpoints go from the strategy to one process and back."""
    first, found = ranks[0], "one process loads it, with equal weights"
    wrong = unequal(
        {name: first.own[name] for name in first.own.keys() & first.weights.keys()}, first.weights
    )
    wrong = [name for name in wrong if name in first.own]
    if wrong:
        return Finding(
            "checkpoint", "wrong", f"what is written of {wrong[0]!r} isn't what the first rank has"
        )
    try:
        alone = session.alone(
            "loading in one process", runs.load, "loaded", session.plan.path("train-end"), True
        )
    except RankError as error:
        return Finding("checkpoint", "wrong", f"one process can't load it: {reason(error)}")
    wrong = unequal(alone.own, first.weights)
    if wrong:
        return Finding("checkpoint", "wrong", f"one process that loads it has another {wrong[0]!r}")
    if "resharding" not in session.plan.subject.features and len(ranks) > 1:
        return Finding(
            "checkpoint", "note", f"{found}; the way back isn't declared by the strategy (resharding)"
        )
    try:
        back = session.under(
            "loading one process's", runs.load, "loaded-back", session.plan.path("loaded-end")
        )
    except RankError as error:
        return Finding("checkpoint", "wrong", f"of one process, it can't be loaded: {reason(error)}")
    for rank, seen in enumerate(back):
        wrong = unequal(seen.weights, first.weights)
        if wrong:
            return Finding("checkpoint", "wrong", f"of one process, rank {rank} loads another {wrong[0]!r}")
    return Finding("checkpoint", "right", f"{found}, and the strategy loads one process's")


def _first_unlike(ranks: Sequence[Seen], others: Sequence[Seen], whole: bool = False) -> str | None:
    """Say where runs differ first; None where nowhere."""
    for rank, (one, other) in enumerate(zip(ranks, others)):
        skip = 0 if whole else one.batches_at
        for index, (mine, theirs) in enumerate(zip(one.losses[skip:], other.losses)):
            if mine != theirs and not (
                mine is not None and theirs is not None and mine != mine and theirs != theirs
            ):
                return (
                    f"the loss of micro-batch {skip + index + 1} on rank {rank} is {_number(theirs)}, and was "
                    f"{_number(mine)} without"
                )
        if one.steps != other.steps or len(one.losses) - skip != len(other.losses):
            return f"rank {rank} makes {other.steps} steps, and made {one.steps} without"
    apart = unequal(others[0].weights, ranks[0].weights)
    return f"{apart[0]!r} at the end isn't bitwise what it was without" if apart else None


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-5, atol=1e-8, equal_nan=True)


def _largest(value: Tensor) -> Tensor:
    return value.double().abs().max() if value.numel() else value
