"""Every check fails where it should: a strategy that does one thing wrong is caught by its check."""

from __future__ import annotations

import os

import lossy  # noqa: F401  # plants its faults, as do the others
import pytest
import wrong_configuration  # noqa: F401
import wrong_fidelity  # noqa: F401
import wrong_own_loops  # noqa: F401
import wrong_resumption  # noqa: F401
import wrong_weights  # noqa: F401
from averaging import Averaging
from planting import Fault, faults_of
from stratagem_testing import StrategySubject, run_check
from stratagem_testing.strategies import STRATEGY_CHECKS
from wrong_strategies import OpensNothing

CHECKS = {check.name: check for check in STRATEGY_CHECKS}
ELSEWHERE = {
    "light_plugin",  # test_declaration.py: it takes an installed distribution
    "error_feedback",  # test_lossy_strategies.py: what rounds has other numbers than one process
}
EXHAUSTIVE = "EXHAUSTIVE" in os.environ
"""Try all checks that come before the one that must catch it: minutes."""
LONG = {"preemption": pytest.mark.long, "other_world_size": pytest.mark.long}


def size_for(name: str) -> int:
    return 2 if 2 in CHECKS[name].world_sizes else 1


RIGHT = [pytest.param(name, marks=LONG.get(name, ())) for name in CHECKS if name not in ELSEWHERE]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_strategy_passes(name: str) -> None:
    outcome = run_check(CHECKS[name], StrategySubject(Averaging), size_for(name))
    assert (outcome.verdict, outcome.reason) == ("passed", "")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=LONG.get(fault.check, ()), id=fault.name) for fault in faults_of("exact")],
)
def test_a_wrong_strategy_is_caught(fault: Fault) -> None:
    outcome = fault.run_check()
    assert outcome.verdict == "failed"
    assert fault.words in outcome.reason
    # By that very check, and by none that it builds on.
    names = list(CHECKS)
    for earlier in names[: names.index(fault.check)]:
        if earlier not in ELSEWHERE and (earlier == "parity" or EXHAUSTIVE):
            assert fault.run_check(earlier).reason == "", earlier


def test_a_strategy_that_opens_no_collectives_fails_every_check() -> None:
    for name in ("ranks", "parity"):
        outcome = run_check(CHECKS[name], StrategySubject(OpensNothing), 2)
        assert outcome.verdict == "failed"
        assert "in OpensNothing.open_collectives" in outcome.reason


def test_every_check_has_a_wrong_strategy() -> None:
    assert CHECKS.keys() == {fault.check for fault in faults_of("exact", "lossy")} | {"light_plugin"}
