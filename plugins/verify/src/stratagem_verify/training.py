"""Compare losses, gradients and weights with those of one process, and find out why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stratagem_testing.workers import RankError

from stratagem_verify import runs
from stratagem_verify.compare import Apart, mean, mean_losses
from stratagem_verify.forms import (
    Compare,
    Tried,
    apart_from,
    by_gradients,
    by_losses,
    by_step,
    by_weights,
    noisy,
    try_forms,
)
from stratagem_verify.observed import Seen
from stratagem_verify.runs import Repetition
from stratagem_verify.session import Finding, NotRepeatedError, Session, data_ranks, reason

SUM = "as if a loss is a sum over the batch: divide it by the number of samples"
LONG_STEPS, MOST_STEPS = 20, 200
"""Numbers of steps for comparing weights. Optimizers may change their algorithm after some steps, as preconditioners
do. If an optimizer has an integer among its settings, training goes beyond that number, up to a maximum."""
COUNT = (
    "as if a loss is divided by a count that differs between batches (of tokens, of positives), or compares the "
    "samples of a batch with each other: average over all ranks' samples (self.all_gather), or accept it "
    "with --skip loss"
)


def loss(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Compare each step's loss; set the form in which one process has the same losses."""
    tried = try_forms(session, ranks, "train", by_losses)
    session.form = tried.form
    samples = _samples(ranks, session.plan.accumulate)
    if all(loss is None for seen in ranks for loss in seen.losses):
        return Finding("loss", "note", "training_step returns no loss, so losses can't be compared")
    if tried.form == "whole":
        return Finding("loss", "right", f"equal to that of one process on the same {samples} in each step")
    if tried.form == "ranks":
        return _explained("loss", session, tried, by_losses)
    if ranks[0].draws or ranks[0].batch_norms or ranks[0].manual:
        return _compared_otherwise(session, ranks, tried)
    return Finding("loss", "wrong", _unlike(session, ranks, tried))


def gradients(session: Session) -> Finding:
    """Compare the gradients of the first step. They are the changes in a step of plain SGD."""
    try:
        ranks = session.under("gradients", runs.capture, "gradients", True)
    except RankError as error:
        why = reason(error)
        return Finding(
            "gradients", "note", f"not compared, because a step of plain SGD isn't possible: {why}"
        )
    tried = try_forms(session, ranks, "gradients", by_gradients)
    count = len(ranks[0].trained)
    if tried.form == "whole":
        return Finding("gradients", "right", f"those of the first step, in {count} parameters")
    if tried.form == "ranks":
        if session.form == "whole":
            return _explained("gradients", session, tried, by_gradients)
        return Finding(
            "gradients", "right", f"those of the first step, in {count} parameters: the mean over ranks"
        )
    if tried.apart is None or session.form is None or session.form == "same" or session.quiet:
        return _gradients_otherwise(session, ranks, tried)
    return Finding("gradients", "wrong", _gradients_wrong(tried.apart, data_ranks(ranks)))


def training(session: Session, ranks: Sequence[Seen]) -> Finding:
    """Compare the weights after all steps with the module's own optimizers."""
    steps = ranks[0].steps
    if session.form is None or session.quiet:
        return Finding("training", "note", "not compared, because losses aren't those of one process")
    if session.form == "same":
        return Finding(
            "training", "right", f"after {steps} steps with equal batches, weights are those of one process"
        )
    counted = [count for count in ranks[0].optimizer_counts if count <= MOST_STEPS]
    longer = max([LONG_STEPS, *(count + 3 for count in counted)])
    source = "train"
    if longer > steps:
        source = "long"
        ranks = session.under(f"training for {longer} steps", runs.capture, source, False, False, longer)
        steps = ranks[0].steps
    session.longest = (source, steps)
    how = Repetition(source, session.form, steps)
    found = by_weights(session, ranks, session.repeated(how), None)
    if found is not None:
        found = by_weights(session, ranks, session.repeated(how), noisy(session, how))
    if found is None:
        return Finding(
            "training", "right", f"after {steps} steps with your optimizer, weights are one process's"
        )
    name, share = found
    return Finding(
        "training",
        "wrong",
        f"after {steps} steps, {name!r} differs from one process's by {share:.1%} of its distance from the start: "
        "gradients or optimizer steps differ between ranks and one process",
    )


# If one process has other results -------------------------------------------------------------------------


def _explained(question: str, session: Session, tried: Tried, compare: Compare) -> Finding:
    """Explain why the mean over ranks isn't that of one process on the joined batches. The strategy is right."""
    first, ranks = tried.ranks[0], data_ranks(tried.ranks)
    if tried.why_not:
        return Finding(question, "note", f"the mean over ranks; not compared with one batch: {tried.why_not}")
    by_source = Repetition(tried.source, "ranks", first.steps, tried.source == "gradients")
    whole = session.repeated(replace(by_source, form="whole"))
    if first.draws or first.batch_norms:
        quiet = replace(by_source, quiet=True)
        one = session.repeated(quiet)
        try:
            apart = apart_from(session, [_as_rank(one, ranks)], replace(quiet, form="whole"), compare)
        except NotRepeatedError as error:
            return Finding(question, "note", f"the mean over ranks; not compared with one batch: {error}")
        if apart is None:
            return Finding(question, "note", _by_definition(tried.ranks))
        if one.draws and not _scaled(session, quiet, ranks):
            return Finding(
                question,
                "note",
                "draws random numbers, also in evaluation mode, so losses of a batch and of its parts can't be "
                "compared; with equal random numbers, the mean over ranks is right",
            )
        whole = session.repeated(replace(quiet, form="whole"))
    else:
        one = session.repeated(by_source)
    if question == "gradients":
        return Finding(
            question, "wrong", "aren't those of one process on all samples, though losses are: " + COUNT
        )
    ours, theirs = by_step(one, ranks), whole.losses
    index = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), 0)
    a, b = ours[index] or 0.0, theirs[index] or 0.0
    is_sum = a and abs(b / a - ranks) < 0.2 * (ranks - 1)
    return Finding(
        question,
        "wrong",
        f"isn't the mean over samples: in step {index // session.plan.accumulate + 1} the mean of {ranks} ranks is "
        f"{a:.6g}, but that of one process on the same samples {b:.6g}, {SUM if is_sum else COUNT}",
    )


def _scaled(session: Session, how: Repetition, ranks: int) -> bool:
    """Return whether losses of a batch and of its parts differ by more than random numbers explain."""
    seeded = [session.repeated(replace(how, seed=seed)) for seed in (1, 2, 3)]
    firsts = [mean(seen.losses[:ranks]) or 0.0 for seen in seeded]
    whole = session.repeated(replace(how, form="whole")).losses[0] or 0.0
    spread = max(firsts) - min(firsts)
    return abs(whole - sum(firsts) / len(firsts)) > 10 * spread + 0.1 * abs(firsts[0])


def _as_rank(alone: Seen, ranks: int) -> Seen:
    return replace(alone, losses=by_step(alone, ranks))


def _by_definition(ranks: Sequence[Seen]) -> str:
    notes, first = [], ranks[0]
    if first.batch_norms:
        who = f"{_listed(first.batch_norms)} normalize{'s' * (len(first.batch_norms) == 1)}"
        notes.append(
            f"{who} each rank's own batch, by definition: use torch.nn.SyncBatchNorm for one process's results"
            if data_ranks(ranks) > 1
            else f"{who} each part of a batch separately, by definition"
        )
    if first.draws:
        notes.append("draws random numbers, so losses of a batch and of its parts can't be compared")
    return f"{'; '.join(notes)}; in evaluation mode, losses are those of one process"


def _compared_otherwise(session: Session, ranks: Sequence[Seen], tried: Tried) -> Finding:
    """Compare in evaluation mode, or with equal batches on all ranks, if random numbers or normalization differ."""
    first = ranks[0]
    if first.draws or first.batch_norms or not first.manual:
        quiet = session.under("training in evaluation mode", runs.capture, "quiet", False, True)
        resting = try_forms(session, quiet, "quiet", by_losses, quiet=True)
        if resting.form is not None:
            session.quiet = True
            return Finding("loss", "note", _by_definition(ranks))
        if not first.manual:
            return Finding("loss", "wrong", _unlike(session, ranks, tried))
        if resting.apart is not None and not quiet[0].draws:
            # Ranks have different batches here. With equal ones, gradients that aren't reduced would look right.
            return Finding("loss", "wrong", _unlike(session, quiet, resting))
    same = session.under("training on equal batches", runs.train_on_same, "same", "train", first.steps)
    same = [replace(seen, start=first.start) for seen in same]
    if data_ranks(ranks) > 1:
        apart = apart_from(session, same, Repetition("train", "same", first.steps), by_losses)
    else:
        apart = tried.apart
    if apart is not None:
        return Finding("loss", "wrong", _unlike(session, ranks, replace(tried, apart=apart)))
    session.form = "same"
    if not first.draws and not first.batch_norms:
        return Finding("loss", "wrong", _manual_mean(session, ranks))
    notes = "random numbers are drawn" if first.draws else "each rank normalizes its own batch"
    return Finding(
        "loss",
        "note",
        f"optimizes manually, and {notes}, so that one process can't repeat the ranks' steps: compared with equal "
        "batches on all ranks",
    )


def _manual_mean(session: Session, ranks: Sequence[Seen]) -> str:
    alone = session.repeated(Repetition("train", "whole", ranks[0].steps))
    ours, theirs = mean_losses(ranks)[0] or 0.0, alone.losses[0] or 0.0
    count = data_ranks(ranks)
    is_sum = ours and abs(theirs / ours - count) < 0.2 * (count - 1)
    return (
        f"isn't the mean over samples: in step 1 the mean of {count} ranks is {ours:.6g}, but that of one process on "
        f"the same samples {theirs:.6g}, {SUM if is_sum else COUNT}"
    )


def _unlike(session: Session, ranks: Sequence[Seen], tried: Tried) -> str:
    name, apart = session.plan.subject.name, tried.apart
    if apart is None:
        return f"couldn't be compared with one process: {tried.why_not}"
    if not apart.where.startswith("micro-batch"):
        return f"weights differ from those of one process: {apart.where!r}"
    number = int(apart.where.split()[1]) - 1
    step = number // session.plan.accumulate + 1
    if step == 1:
        cause = (
            "before any update, so ranks compute something else: they begin with other weights or buffers, or "
            "the step depends on its rank"
        )
    else:
        cause = "though it is equal in the first step, so the update differs: see gradients"
    return (
        f"in step {step} it is {apart.ours:.6g} under {name}, but {apart.theirs:.6g} in one process, {cause}"
    )


def _gradients_otherwise(session: Session, ranks: Sequence[Seen], tried: Tried) -> Finding:
    quiet = session.under("gradients in evaluation mode", runs.capture, "gradients-quiet", True, True)
    resting = try_forms(session, quiet, "gradients-quiet", by_gradients, quiet=True)
    if resting.form is not None:
        return Finding("gradients", "right", "those of the first step, compared in evaluation mode")
    if ranks[0].manual and data_ranks(ranks) > 1 and (resting.apart is None or quiet[0].draws):
        same = session.under("gradients on equal batches", runs.train_on_same, "same", "gradients", 1, True)
        same = [replace(seen, start=ranks[0].start) for seen in same]
        apart = apart_from(session, same, Repetition("gradients", "same", 1, True), by_gradients)
        if apart is None:
            return Finding("gradients", "right", "with equal batches on all ranks, those of the first step")
        return Finding("gradients", "wrong", _gradients_wrong(apart, data_ranks(ranks)))
    if resting.apart is None:
        return Finding("gradients", "note", f"not compared with one process: {resting.why_not}")
    return Finding("gradients", "wrong", _gradients_wrong(resting.apart, data_ranks(ranks)))


def _gradients_wrong(apart: Apart, ranks: int) -> str:
    norms = f"of {apart.where!r} have norm {apart.ours:.6g}, but {apart.theirs:.6g} in one process"
    if not apart.ours:
        return f"{norms}: the parameter isn't trained under this strategy"
    if apart.theirs and ranks > 1 and abs(apart.ours / apart.theirs - ranks) < 0.01 * ranks:
        return f"{norms}, {ranks} times as much: gradients are summed over ranks, not averaged"
    return f"{norms}: ranks' gradients aren't averaged, or those of some ranks are missing"


def _samples(ranks: Sequence[Seen], accumulate: int) -> str:
    sizes = {seen.data_rank: seen.sizes[:accumulate] for seen in ranks}
    known = [size for each in sizes.values() for size in each if size is not None]
    return f"{sum(known)} samples" if known else "samples"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
