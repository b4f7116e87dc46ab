"""The contracts: test classes from which the author of a component derives one, with a fixture `subject`.

::

    class TestOurs(StrategyContract):
        @pytest.fixture
        def subject(self):
            return StrategySubject(OurStrategy, options={"timeout_s": 60})
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from stratagem_testing.checks import Check
from stratagem_testing.outcome import Outcome, run_check
from stratagem_testing.parts import PART_CHECKS
from stratagem_testing.pytest_plugin import OUTCOMES
from stratagem_testing.strategies import STRATEGY_CHECKS


class Contract:
    """Base class of contracts: a test for each check, at each world size at which the check is meaningful."""

    checks: ClassVar[tuple[Check, ...]] = ()
    world_sizes: ClassVar[tuple[int, ...]] = (1,)
    """World sizes to test; fewer save time."""

    @pytest.fixture
    def subject(self) -> Any:
        """Override it to return the subject of the checks."""
        raise NotImplementedError(f"{type(self).__qualname__} has no fixture `subject`: override it")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate a test for each check."""
        if "check" not in metafunc.fixturenames:
            return
        metafunc.parametrize(
            ("check", "world_size"),
            [
                pytest.param(
                    check, size, id=f"{check.name}-{size}" if len(self.world_sizes) > 1 else check.name
                )
                for check in self.checks
                for size in self.world_sizes
                if size in check.world_sizes
            ],
        )

    def test_conforms(self, check: Check, world_size: int, subject: Any, pytestconfig: pytest.Config) -> None:
        """The component does what it declares."""
        outcome = run_check(check, subject, world_size)
        pytestconfig.stash.setdefault(OUTCOMES, []).append({"name": subject.name, **outcome.to_json()})
        report(outcome)


def report(outcome: Outcome) -> None:
    """Report an outcome to pytest."""
    if outcome.verdict == "skipped":
        pytest.skip(f"{outcome.check}: {outcome.reason}")
    if outcome.verdict == "waived":
        pytest.xfail(f"{outcome.check}: {outcome.reason}")
    if outcome.verdict == "failed":
        message = f"{outcome.reason}\nThe claim: {outcome.claim}"
        output = getattr(outcome.error, "output", "")
        pytest.fail(f"{message}\n\n{outcome.error}\n{output}" if output else message, pytrace=False)


class StrategyContract(Contract):
    """Checks of a strategy. Its fixture returns a `StrategySubject`."""

    checks = STRATEGY_CHECKS
    world_sizes = (1, 2, 4)


class AxisContract(Contract):
    """Checks of an axis, alone and combined with each other installed axis. Its fixture returns an `AxisSubject`."""

    checks = PART_CHECKS["axis"]
    world_sizes = (1, 2, 4)


class AcceleratorContract(Contract):
    """Checks of an accelerator. Its fixture returns an `AcceleratorSubject`."""

    checks = PART_CHECKS["accelerator"]


class PrecisionContract(Contract):
    """Checks of a precision. Its fixture returns a `PrecisionSubject`."""

    checks = PART_CHECKS["precision"]
    world_sizes = (1, 2)


class CheckpointContract(Contract):
    """Checks of a checkpointer. Its fixture returns a `CheckpointSubject`."""

    checks = PART_CHECKS["checkpoint"]
    world_sizes = (1, 2)


class EnvironmentContract(Contract):
    """Checks of an environment. Its fixture returns an `EnvironmentSubject`."""

    checks = PART_CHECKS["environment"]


class LauncherContract(Contract):
    """Checks of a launcher. Its fixture returns a `LauncherSubject`."""

    checks = PART_CHECKS["launcher"]


class ExtensionContract(Contract):
    """Checks of an extension. Its fixture returns an `ExtensionSubject`."""

    checks = PART_CHECKS["extension"]
    world_sizes = (1, 2)


class LoggerContract(Contract):
    """Checks of a logger. Its fixture returns a `LoggerSubject`."""

    checks = PART_CHECKS["logger"]


class PlaceContract(Contract):
    """Checks of a place. Its fixture returns a `PlaceSubject`."""

    checks = PART_CHECKS["place"]
