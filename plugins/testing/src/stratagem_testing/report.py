"""Run all checks of a component without test code, and report the outcomes."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from stratagem import Component
from stratagem.errors import UsageError
from stratagem.sdk.catalogue import Catalogue, Kind, imported, load_catalogue
from stratagem_testing.checks import Check
from stratagem_testing.outcome import Outcome, run_check
from stratagem_testing.parts import PART_CHECKS
from stratagem_testing.parts.subject import (
    AcceleratorSubject,
    AxisSubject,
    CheckpointSubject,
    EnvironmentSubject,
    ExtensionSubject,
    LauncherSubject,
    LoggerSubject,
    PlaceSubject,
    PrecisionSubject,
)
from stratagem_testing.strategies import STRATEGY_CHECKS
from stratagem_testing.subject import StrategySubject

CHECKS: dict[str, tuple[Check, ...]] = {"strategy": STRATEGY_CHECKS, **PART_CHECKS}
SUBJECTS: dict[Kind, Callable[[str], Any]] = {
    "strategy": StrategySubject,
    "axis": AxisSubject,
    "accelerator": AcceleratorSubject,
    "precision": PrecisionSubject,
    "checkpoint": CheckpointSubject,
    "environment": EnvironmentSubject,
    "launcher": LauncherSubject,
    "extension": ExtensionSubject,
    "logger": LoggerSubject,
    "place": PlaceSubject,
}


@dataclass(frozen=True)
class Report:
    """The outcomes of all checks of one component."""

    name: str
    """Name under which the component was requested."""
    kind: Kind
    """Kind of the component."""
    distribution: str
    """The distribution that has the component."""
    version: str
    """Version of that distribution."""
    outcomes: tuple[Outcome, ...]
    """Outcomes in the order of the checks."""
    seconds: float = 0.0
    """Total duration. If several checks ran at a time, it is less than the sum of their durations."""

    def count(self, verdict: str) -> int:
        """Return the number of outcomes with a verdict."""
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values. docs/reference/cli.md lists the keys."""
        import torch

        import stratagem

        return {
            "name": self.name,
            "kind": self.kind,
            "distribution": self.distribution,
            "version": self.version,
            "stratagem": stratagem.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "seconds": self.seconds,
            **{verdict: self.count(verdict) for verdict in ("passed", "failed", "skipped", "waived")},
            "checks": [outcome.to_json() for outcome in self.outcomes],
        }


def find_component(catalogue: Catalogue, name: str, kind: Kind | None = None) -> tuple[Kind, Component]:
    """Find a component by name; strategies are searched first.

    Raises:
        UnknownNameError: there is none.
    """
    if kind is not None:
        return kind, catalogue.find(kind, name)
    bare = name.rpartition(":")[2]
    for candidate in SUBJECTS:
        if bare in catalogue.names(candidate):
            return candidate, catalogue.find(candidate, name)
    return "strategy", catalogue.find("strategy", name)


def subject_of(kind: Kind, name: str, component: Component) -> Any:
    """Return the subject for the checks of a component: its own subject, or one made from its name."""
    if not component.conformance:
        return SUBJECTS[kind](name)
    subject = imported(component.conformance)
    if isinstance(subject, Mapping):
        if name in subject:
            return subject[name]
        subject = subject[component.name]
    if name in (component.name, *component.aliases):
        return subject
    return replace(subject, **{"strategy" if kind == "strategy" else "part": name})


def subject_names(component: Component) -> list[str]:
    """Return the names for which a component has a subject: its own name, and those of presets."""
    subject = imported(component.conformance) if component.conformance else None
    presets = [name for name in subject if name in component.presets] if isinstance(subject, Mapping) else []
    return [component.name, *presets]


def run_report(
    kind: Kind,
    name: str,
    component: Component,
    *,
    world_sizes: Sequence[int] = (),
    only: Iterable[str] = (),
    pairs: Collection[tuple[str, int]] | None = None,
    accelerator: str | None = None,
    fail_fast: bool = False,
    jobs: int = 1,
    tell: Callable[[Outcome], None] | None = None,
) -> Report:
    """Run the checks of a component.

    Args:
        kind: kind of the component.
        name: requested name: also a preset, or "distribution:name".
        component: the component to check.
        world_sizes: run only these; by default all that are possible.
        only: names of checks; by default all.
        pairs: checks with their world sizes, to run only these; None runs all that the two arguments above select.
        accelerator: accelerator for a strategy, which is tried on as many devices as there are; None is the
          subject's.
        fail_fast: whether to stop after the first check that fails.
        jobs: number of a strategy's checks to run at a time, each in separate processes.
        tell: called after each check.

    Raises:
        UsageError: there is no such check, or the component can't be tried at any of `world_sizes`.
    """
    chosen = set(only)
    unknown = sorted(chosen - {check.name for check in CHECKS[kind]})
    if unknown:
        names = ", ".join(check.name for check in CHECKS[kind])
        raise UsageError(f"there is no check {unknown[0]!r} of a {kind}; available: {names}")
    subject = subject_of(kind, name, component)
    possible = subject.world_sizes()
    if accelerator is not None:
        if kind != "strategy":
            raise UsageError(
                f"an accelerator can only be chosen for strategies, and {name!r} is a {kind}: leave it out"
            )
        subject = replace(subject, accelerator=accelerator)
        devices = load_catalogue().find("accelerator", accelerator).load()()
        possible = tuple(size for size in possible if devices.check_index(size - 1) is None)
    sizes = [size for size in possible if not world_sizes or size in world_sizes]
    if not sizes:
        raise UsageError(
            f"{kind} {name!r} can be tried at world size {', '.join(map(str, possible)) or 'none'}"
            f"{f' on {accelerator}' if accelerator else ''}, not at {', '.join(map(str, world_sizes)) or 'any'}"
        )
    tasks = [
        (check, size)
        for check in CHECKS[kind]
        if not chosen or check.name in chosen
        # List a check that isn't meaningful at any of these sizes once, with the reason.
        for size in [s for s in sizes if s in check.world_sizes] or sizes[:1]
        if pairs is None or (check.name, size) in pairs
    ]
    if kind != "strategy" or subject.own_processes:
        jobs = 1  # such a component may need something that only exists once
    origin = component.origin
    began = time.monotonic()
    outcomes = _run_all(tasks, subject, jobs, fail_fast, tell or (lambda outcome: None))
    seconds = round(time.monotonic() - began, 3)
    return Report(name, kind, origin.distribution, origin.version, tuple(outcomes), seconds)


def _run_all(
    tasks: Sequence[tuple[Check, int]],
    subject: Any,
    jobs: int,
    fail_fast: bool,
    tell: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run checks, `jobs` at a time, each in the processes of its thread. Outcomes are in the order of `tasks`."""
    outcomes: dict[int, Outcome] = {}
    waiting = iter(enumerate(tasks))
    lock, failed = threading.Lock(), threading.Event()

    def work() -> None:
        while not (fail_fast and failed.is_set()):
            with lock:
                index, task = next(waiting, (-1, None))
            if task is None:
                return
            outcome = run_check(task[0], subject, task[1])
            if outcome.verdict == "failed":
                failed.set()
            with lock:
                outcomes[index] = outcome
                tell(outcome)

    # This thread works, too, so that a single job needs no other thread.
    with ThreadPoolExecutor(max(1, jobs - 1)) as pool:
        others = [pool.submit(work) for _ in range(jobs - 1)]
        work()
        for other in others:
            other.result()
    return [outcomes[index] for index in sorted(outcomes)]
