"""The conformance kit: what every strategy, accelerator, precision … is to do, as tests and as a report.

For the author of a plugin: docs/writing-a-plugin.md. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_testing.checks import Check, ConformanceError, NotApplicable, check, checks_in, expect
    from stratagem_testing.contract import (
        AcceleratorContract,
        CheckpointContract,
        Contract,
        EnvironmentContract,
        LauncherContract,
        PrecisionContract,
        StrategyContract,
    )
    from stratagem_testing.outcome import Outcome, run_check
    from stratagem_testing.parts.subject import (
        AcceleratorSubject,
        CheckpointSubject,
        EnvironmentSubject,
        LauncherSubject,
        PrecisionSubject,
    )
    from stratagem_testing.subject import COMPARED_WITH_ITSELF, StrategySubject
    from stratagem_testing.verification.verify import Verification, verify

_WHERE = {
    "COMPARED_WITH_ITSELF": "subject",
    "AcceleratorContract": "contract",
    "AcceleratorSubject": "parts.subject",
    "Check": "checks",
    "CheckpointContract": "contract",
    "CheckpointSubject": "parts.subject",
    "ConformanceError": "checks",
    "Contract": "contract",
    "EnvironmentContract": "contract",
    "EnvironmentSubject": "parts.subject",
    "LauncherContract": "contract",
    "LauncherSubject": "parts.subject",
    "NotApplicable": "checks",
    "Outcome": "outcome",
    "PrecisionContract": "contract",
    "PrecisionSubject": "parts.subject",
    "StrategyContract": "contract",
    "StrategySubject": "subject",
    "Verification": "verification.verify",
    "check": "checks",
    "checks_in": "checks",
    "expect": "checks",
    "run_check": "outcome",
    "verify": "verification.verify",
}

__all__ = [
    "COMPARED_WITH_ITSELF",
    "AcceleratorContract",
    "AcceleratorSubject",
    "Check",
    "CheckpointContract",
    "CheckpointSubject",
    "ConformanceError",
    "Contract",
    "EnvironmentContract",
    "EnvironmentSubject",
    "LauncherContract",
    "LauncherSubject",
    "NotApplicable",
    "Outcome",
    "PrecisionContract",
    "PrecisionSubject",
    "StrategyContract",
    "StrategySubject",
    "Verification",
    "check",
    "checks_in",
    "expect",
    "run_check",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
