"""The contracts: test classes that the author of a component derives, with one fixture each.

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
    """Base of all contracts: a test for each check, at each world size at which the check is meaningful."""

    checks: ClassVar[tuple[Check, ...]] = ()
    world_sizes: ClassVar[tuple[int, ...]] = (1,)
    """World sizes to test; fewer save time."""

    @pytest.fixture
    def subject(self) -> Any:
        """Override it: return what the checks are about."""
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
    """Tell pytest of an outcome."""
    if outcome.verdict == "skipped":
        pytest.skip(f"{outcome.check}: {outcome.reason}")
    if outcome.verdict == "waived":
        pytest.xfail(f"{outcome.check}: {outcome.reason}")
    if outcome.verdict == "failed":
        message = f"{outcome.reason}\nThe claim: {outcome.claim}"
        output = getattr(outcome.error, "output", "")
        pytest.fail(f"{message}\n\n{outcome.error}\n{output}" if output else message, pytrace=False)


class StrategyContract(Contract):
    """What a strategy does: its fixture returns a `StrategySubject`."""

    checks = STRATEGY_CHECKS
    world_sizes = (1, 2, 4)


class AxisContract(Contract):
    """What an axis does, alone and beside each other one that is installed: its fixture returns an `AxisSubject`."""

    checks = PART_CHECKS["axis"]
    world_sizes = (1, 2, 4)


class AcceleratorContract(Contract):
    """What an accelerator does: its fixture returns an `AcceleratorSubject`."""

    checks = PART_CHECKS["accelerator"]


class PrecisionContract(Contract):
    """What a precision does: its fixture returns a `PrecisionSubject`."""

    checks = PART_CHECKS["precision"]
    world_sizes = (1, 2)


class CheckpointContract(Contract):
    """What a checkpointer does: its fixture returns a `CheckpointSubject`."""

    checks = PART_CHECKS["checkpoint"]
    world_sizes = (1, 2)


class EnvironmentContract(Contract):
    """What an environment does: its fixture returns an `EnvironmentSubject`."""

    checks = PART_CHECKS["environment"]


class LauncherContract(Contract):
    """What a launcher does: its fixture returns a `LauncherSubject`."""

    checks = PART_CHECKS["launcher"]


class ExtensionContract(Contract):
    """What an extension does: its fixture returns an `ExtensionSubject`."""

    checks = PART_CHECKS["extension"]
    world_sizes = (1, 2)


class LoggerContract(Contract):
    """What a logger does: its fixture returns a `LoggerSubject`."""

    checks = PART_CHECKS["logger"]


class PlaceContract(Contract):
    """What a place does: its fixture returns a `PlaceSubject`."""

    checks = PART_CHECKS["place"]
