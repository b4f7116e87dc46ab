"""The conformance kit: checks for strategies, accelerators, precisions and other components, as tests and as a
report.

For authors of plugins: docs/writing-a-plugin.md. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_testing.checks import Check, ConformanceError, NotApplicable, check, checks_in, expect
    from stratagem_testing.contract import (
        AcceleratorContract,
        AxisContract,
        CheckpointContract,
        Contract,
        EnvironmentContract,
        ExtensionContract,
        LauncherContract,
        LoggerContract,
        PlaceContract,
        PrecisionContract,
        StrategyContract,
    )
    from stratagem_testing.outcome import Outcome, run_check
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
    from stratagem_testing.subject import COMPARED_WITH_ITSELF, DRIFTING_REPLICAS, StrategySubject

__all__ = [
    "COMPARED_WITH_ITSELF",
    "DRIFTING_REPLICAS",
    "AcceleratorContract",
    "AcceleratorSubject",
    "AxisContract",
    "AxisSubject",
    "Check",
    "CheckpointContract",
    "CheckpointSubject",
    "ConformanceError",
    "Contract",
    "EnvironmentContract",
    "EnvironmentSubject",
    "ExtensionContract",
    "ExtensionSubject",
    "LauncherContract",
    "LauncherSubject",
    "LoggerContract",
    "LoggerSubject",
    "NotApplicable",
    "Outcome",
    "PlaceContract",
    "PlaceSubject",
    "PrecisionContract",
    "PrecisionSubject",
    "StrategyContract",
    "StrategySubject",
    "check",
    "checks_in",
    "expect",
    "run_check",
]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".checks": "Check ConformanceError NotApplicable check checks_in expect",
            ".contract": "AcceleratorContract AxisContract CheckpointContract Contract "
            "EnvironmentContract ExtensionContract LauncherContract LoggerContract PlaceContract "
            "PrecisionContract StrategyContract",
            ".outcome": "Outcome run_check",
            ".parts.subject": "AcceleratorSubject AxisSubject CheckpointSubject "
            "EnvironmentSubject ExtensionSubject LauncherSubject LoggerSubject PlaceSubject PrecisionSubject",
            ".subject": "COMPARED_WITH_ITSELF DRIFTING_REPLICAS StrategySubject",
        },
    )
