"""`Fault`: a component with one thing wrong, and the check of the kit that must catch it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from averaging import AveragedPrepared, Averaging
from stratagem_testing import Check, Outcome, run_check
from stratagem_testing.report import CHECKS, SUBJECTS


@dataclass(frozen=True)
class Fault:
    """A component with one thing wrong."""

    area: str
    """"exact", "lossy", "copies", "checkpoint", "precision" or "others": scores are counted by it."""
    name: str
    """What is wrong; unique within its area."""
    part: Any
    """The component: a class at the top level of a module, where workers find it."""
    check: str
    """The check that must catch it."""
    words: str = ""
    """Words of the failure."""
    kind: str = "strategy"
    """Of the component."""
    subject: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of its subject."""

    def make_subject(self) -> Any:
        """Make what checks are about."""
        return SUBJECTS[self.kind](self.part, **self.subject)  # type: ignore[index]  # a kind of component

    def run_check(self, name: str = "") -> Outcome:
        """Run the check that must catch it, or the one with this name, with two ranks where the check can."""
        check = check_named(self.kind, name or self.check)
        return run_check(check, self.make_subject(), 2 if 2 in check.world_sizes else check.world_sizes[0])


FAULTS: list[Fault] = []
"""All that were planted by the modules imported so far."""


def check_named(kind: str, name: str) -> Check:
    return next(check for check in CHECKS[kind] if check.name == name)


def faults_of(*areas: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.area in areas]


def compares_nothing(self: Any) -> Any:
    return iter(())


def strategy_of(cls: Any, base: type[Averaging] = Averaging) -> type[Averaging]:
    """Return a strategy whose `Prepared` or `Collectives` is `cls`, under a name at which workers find it."""
    if issubclass(cls, Averaging):
        return cls
    name = f"{cls.__name__}Strategy"
    part = "prepared" if issubclass(cls, AveragedPrepared) else "collectives_class"
    own = {part: cls, "__module__": cls.__module__, "__qualname__": name}
    strategy = type(name, (base,), own)
    setattr(sys.modules[cls.__module__], name, strategy)
    return strategy


def caught_by(check: str, words: str, **subject: Any) -> Any:
    """Plant a fault in a strategy: a class of strategies, of `Prepared` or of `Collectives`.

    Args:
        check: must catch it.
        words: of the failure.
        subject: further fields of its `StrategySubject`.
    """

    def register(cls: Any) -> Any:
        if issubclass(cls, AveragedPrepared) and check != "replicas_are_compared":
            cls.replicas = compares_nothing  # or that would notice before the check does
        FAULTS.append(Fault("exact", cls.__name__, strategy_of(cls), check, words, subject=subject))
        return cls

    return register
