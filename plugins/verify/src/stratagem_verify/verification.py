"""`verify`: check all questions about a module under a strategy."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stratagem_testing.report import subject_of
from stratagem_testing.subject import StrategySubject
from stratagem_testing.workers import RankError

from stratagem import RunConfig
from stratagem.errors import UsageError
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.runs import assemble
from stratagem_verify import continuing, keeping, runs, training
from stratagem_verify.first_place import first_place
from stratagem_verify.observed import Seen
from stratagem_verify.plan import Plan
from stratagem_verify.session import Finding, NotRepeatedError, Session, reason

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module

QUESTIONS: Mapping[str, Callable[[Session, Sequence[Seen]], Finding]] = {
    "data": keeping.data,
    "loss": training.loss,
    "gradients": lambda session, ranks: training.gradients(session),
    "training": training.training,
    "optimizers": keeping.optimizers,
    "buffers": keeping.buffers,
    "validation": continuing.validation,
    "evaluation": continuing.evaluation,
    "checkpoint": continuing.checkpoint,
    "resume": continuing.resume,
}
"""Name → function that answers the question, in order. "loss" sets how later ones compare."""


@dataclass(frozen=True)
class Verification:
    """The result of verifying one module under one strategy."""

    strategy: str
    """Name of the strategy."""
    accelerator: str
    """Name of the accelerator."""
    devices: int
    """Number of devices."""
    precision: str
    """Name of the precision."""
    steps: int
    """Number of optimizer steps of each run."""
    findings: tuple[Finding, ...]
    """Findings, in the order of the questions."""
    seconds: float
    """Total duration."""
    first_difference: str = ""
    """The first difference from the training of one process, as named by `stratagem diff`; "" if there is none."""

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not any(finding.verdict == "wrong" for finding in self.findings)

    def verdict(self, question: str) -> str:
        """Return the verdict on a question: "right", "note" or "wrong"; "" if it wasn't checked."""
        return next((found.verdict for found in self.findings if found.question == question), "")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values. docs/guides/verify.md lists the keys."""
        import torch

        import stratagem

        return {
            "strategy": self.strategy,
            "accelerator": self.accelerator,
            "devices": self.devices,
            "precision": self.precision,
            "steps": self.steps,
            "stratagem": stratagem.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "right": self.is_right,
            "seconds": self.seconds,
            "findings": [vars(finding) for finding in self.findings],
            "first_difference": self.first_difference,
        }


def verify(
    make_module: Callable[[], Module],
    strategy: str | Callable[..., Any] | StrategySubject,
    *,
    devices: int = 2,
    accelerator: str = "cpu",
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    steps: int = 6,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    tell: Callable[[str], None] | None = None,
) -> Verification:
    """Train a module for a few steps under a strategy and in one process, and compare.

    Args:
        make_module: returns the module, which has its own data. It is pickled by reference, and called in every
          worker.
        strategy: a name, a class at the top level of a module, or a subject with its own tolerances.
        devices: number of devices.
        accelerator: name of the accelerator.
        options: keyword arguments for the strategy.
        settings: further keyword arguments of `Trainer`, such as precision, accumulate_grad_batches or
            gradient_clip_val.
        steps: number of optimizer steps of each run; at least 2.
        only: names from `QUESTIONS`; all if empty.
        skip: names from `QUESTIONS` to leave out.
        tell: called with the name of each run, before it.

    Raises:
        UsageError: there is no such question, or the run isn't possible. Raised before any training.
    """
    unknown = sorted({*only, *skip} - QUESTIONS.keys())
    if unknown:
        raise UsageError(f"there is no question {unknown[0]!r}; available: {', '.join(QUESTIONS)}")
    if steps < 2:
        raise UsageError(f"steps={steps} leaves no step after a checkpoint: pass at least 2")
    given = settings or {}
    subject = replace(subject_for(strategy, options or {}), accelerator=accelerator, world_size=devices)
    _refuse_impossible(subject, given)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stratagem-verify-") as folder:
        plan = Plan(replace(subject, folder=folder), make_module, given, steps)
        asked = [name for name in QUESTIONS if name not in skip and (not only or name in only)]
        findings, first = _findings(Session(plan, tell), asked)
    return Verification(
        subject.name,
        accelerator,
        devices,
        plan.precision,
        steps,
        tuple(findings),
        round(time.monotonic() - began, 1),
        first,
    )


def subject_for(
    strategy: str | Callable[..., Any] | StrategySubject, options: Mapping[str, Any]
) -> StrategySubject:
    """Return the subject to verify. If the strategy has a subject for the conformance kit, use its tolerances."""
    if isinstance(strategy, StrategySubject):
        return replace(strategy, options={**strategy.options, **options})
    subject = StrategySubject(strategy, options=options)
    if not isinstance(strategy, str):
        return subject
    known = subject_of("strategy", strategy, load_catalogue().find("strategy", strategy))
    return replace(subject, tolerances=known.tolerances, own_processes=known.own_processes)


def _refuse_impossible(subject: StrategySubject, settings: Mapping[str, Any]) -> None:
    """Refuse a run that isn't possible, before any process is started."""
    named = isinstance(subject.strategy, str)
    keywords = {("extensions" if key == "plugins" else key): value for key, value in settings.items()}
    config = RunConfig(
        **{key: value for key, value in keywords.items() if key in RunConfig.__dataclass_fields__},
        strategy=subject.strategy if named else subject.strategy(**subject.options),  # type: ignore[operator]  # a class where it isn't a name
        strategy_options=dict(subject.options) if named else {},
        accelerator=subject.accelerator,
        devices=subject.world_size,
    )
    environment = assemble(config).environment
    if not environment.creates_processes and environment.world_size > 1:
        raise UsageError(
            f"verify starts its own processes, but this is one of {environment.world_size} processes of a launcher: "
            "run it without the launcher"
        )


def _findings(session: Session, asked: Collection[str]) -> tuple[list[Finding], str]:
    """Return the answers, and the first difference between the trainings."""
    try:
        ranks = session.under("training", runs.capture, "train")
    except RankError as error:
        return [_failed(session, error)], ""
    steps, processes = ranks[0].steps, len(ranks)
    found = [Finding("run", "right", f"{steps} steps in {processes} process{'es' * (processes > 1)}")]
    for name, ask in QUESTIONS.items():
        if name not in asked and not (name == "loss" and "training" in asked):
            continue
        try:
            finding = ask(session, ranks)
        except NotRepeatedError as error:
            finding = Finding(name, "note", f"not compared: {error}")
        except RankError as error:
            finding = Finding(name, "wrong", f"a run fails: {reason(error)}")
        if name in asked:
            found.append(finding)
    return found, first_place(session, ranks, found)


def _failed(session: Session, error: RankError) -> Finding:
    """Return a finding about a run that failed, with whether one process fails as well."""
    why = reason(error)
    if error.error is None and " hung" in str(error):
        why = str(error).splitlines()[0]
    try:
        session.alone("training in one process", runs.train_alone, "train-alone")
    except RankError as alone:
        if isinstance(alone.error, UsageError) and alone.error.exit_code == 2:
            raise alone.error from None
        return Finding("run", "wrong", f"fails, also in one process: {reason(alone)}")
    return Finding("run", "wrong", f"fails under {session.plan.subject.name}, but not in one process: {why}")
