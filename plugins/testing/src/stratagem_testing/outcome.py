"""Run one check on one component, and record the outcome."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from stratagem.sdk.catalogue import FEATURES
from stratagem_testing.checks import Check, ConformanceError, NotApplicable
from stratagem_testing.workers import RankError, shared_workers

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Applicable)\b(:|$)")
"""Matches the line of a traceback that names the exception."""

Verdict = Literal["passed", "failed", "skipped", "waived"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check at one world size."""

    check: str
    """Name of the check."""
    theme: str
    """Name of the check's file."""
    claim: str
    """The check's claim about the component."""
    world_size: int
    """Number of devices."""
    verdict: Verdict
    """"waived": it failed, as expected."""
    reason: str = ""
    """Why it was skipped or waived, or how it failed."""
    seconds: float = 0.0
    """Duration; 0 if it was skipped."""
    error: BaseException | None = None
    """The exception, if it failed."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without the exception. docs/reference/cli.md lists the keys."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "error"}


def skip_reason(check: Check, features: frozenset[str], world_sizes: tuple[int, ...], world_size: int) -> str:
    """Return why a check isn't run for a component; "" if it is."""
    if world_size not in world_sizes:
        return (
            f"the component runs on {' or '.join(map(str, world_sizes))} device{'s' * (max(world_sizes) > 1)}"
        )
    if world_size not in check.world_sizes:
        return f"the check is meaningful only on {' or '.join(map(str, check.world_sizes))} devices"
    missing = sorted(check.needs - features)
    return f"not declared: {missing[0]} ({FEATURES[missing[0]]})" if missing else ""


def run_check(check: Check, subject: Any, world_size: int = 1) -> Outcome:
    """Run `check` unless it doesn't apply. Errors of the check become part of the outcome.

    A waived check that passes counts as failed, so that the waiver is removed.
    """
    skipped = skip_reason(check, subject.features, subject.world_sizes(), world_size)
    outcome = Outcome(check.name, check.theme, check.claim, world_size, "skipped", skipped)
    if skipped:
        return outcome
    waivers: Mapping[str, str] = subject.waivers
    began = time.monotonic()
    error: BaseException | None = None
    with tempfile.TemporaryDirectory(prefix="stratagem-check-") as folder:
        try:
            _run(check, replace(subject, world_size=world_size, check=check.name, folder=folder))
        except NotApplicable as reason:
            return replace(outcome, reason=str(reason))
        except Exception as raised:
            error = raised
    seconds = round(time.monotonic() - began, 3)
    waiver = waivers.get(check.name) or waivers.get(f"{check.name}-{world_size}")
    if error is not None:
        if waiver is not None:
            return replace(outcome, verdict="waived", reason=waiver, seconds=seconds, error=error)
        return replace(outcome, verdict="failed", reason=failure_reason(error), seconds=seconds, error=error)
    if waiver is not None:
        return replace(outcome, verdict="failed", reason=f"passes, but is waived: {waiver}", seconds=seconds)
    return replace(outcome, verdict="passed", reason="", seconds=seconds)


def _run(check: Check, subject: Any) -> None:
    if not check.in_worker:
        check.run(subject)
        return
    try:
        shared_workers().run(1, check.run, subject)
    except RankError as error:
        if isinstance(error.error, (NotApplicable, ConformanceError)):
            raise error.error from None
        raise


def failure_reason(error: BaseException) -> str:
    """Return the error as one line."""
    text = str(error).strip()
    if isinstance(error, RankError):
        first, _, traceback = text.partition("\n")
        return f"{first.partition(': ')[0]}: {_raised(traceback)}" if traceback else first
    return f"{type(error).__name__}: {text}" if not isinstance(error, AssertionError) else text


def _raised(traceback: str) -> str:
    """Return the first line of the exception at the end of a traceback."""
    lines = traceback.rstrip().splitlines()
    named = [line for line in lines if _EXCEPTION.match(line)]
    return (named or lines)[-1].strip()
