"""Strategies that lose something: no parity tells whether they are right, and checks of a run with itself do."""

from __future__ import annotations

import pytest
from averaging import Averaging
from lossy import AveragesOneStepLateStrategy, Local, Rounding
from planting import Fault, faults_of
from stratagem_testing import COMPARED_WITH_ITSELF, StrategySubject, run_check
from stratagem_testing.strategies import STRATEGY_CHECKS, consistency

CHECKS = {check.name: check for check in STRATEGY_CHECKS}


def test_the_checks_of_a_run_with_itself_are_named() -> None:
    named = {
        check.name for check in STRATEGY_CHECKS if check.theme == consistency.__name__.rpartition(".")[2]
    }
    assert named == set(COMPARED_WITH_ITSELF)


@pytest.mark.parametrize("fault", faults_of("lossy"), ids=lambda fault: fault.name)
def test_a_fault_is_caught(fault: Fault) -> None:
    outcome = fault.run_check()
    assert outcome.verdict == "failed"
    assert fault.words in outcome.reason


@pytest.mark.parametrize("name", COMPARED_WITH_ITSELF)
@pytest.mark.parametrize("strategy", [Rounding, Local])
def test_a_right_strategy_passes(name: str, strategy: type[Averaging]) -> None:
    outcome = run_check(CHECKS[name], StrategySubject(strategy), 2)
    assert (outcome.verdict, outcome.reason) == ("passed", "")


def test_a_compressor_that_makes_up_for_what_it_rounds_passes() -> None:
    outcome = run_check(CHECKS["error_feedback"], StrategySubject(Rounding, feeds_errors_back=True), 2)
    assert (outcome.verdict, outcome.reason) == ("passed", "")


@pytest.mark.parametrize("period", [2, 5])
def test_a_strategy_is_tried_with_its_own_period(period: int) -> None:
    def tried(strategy: type[Averaging]) -> str:
        # 1 where numbers are compared with those of one process, and its own where a run is with itself.
        own = StrategySubject(
            strategy, options={"period": 1}, options_for={"save_and_load": {"period": period}}
        )
        return run_check(CHECKS["save_and_load"], own, 2).verdict

    assert tried(Local) == "passed"
    assert tried(AveragesOneStepLateStrategy) == "failed"
