"""Every check fails where it should: a strategy that does one thing wrong is caught by its check."""

from __future__ import annotations

import os

import pytest
import wrong_fidelity  # noqa: F401  # registers its strategies
from averaging import Averaging
from stratagem_testing import StrategySubject, run_check
from stratagem_testing.strategies import STRATEGY_CHECKS
from wrong_configuration import CountsRuns, PicklesLess
from wrong_own_loops import FURTHER, KeepsNoOptimizers, StepsPastTheModule
from wrong_resumption import SeedsWorkersOnceStrategy
from wrong_strategies import (
    WRONG,
    LeavesHalvesStrategy,
    MixesShapesStrategy,
    OpensNothing,
    PassesBarriersStrategy,
    RoundsWeightsStrategy,
)

CHECKS = {check.name: check for check in STRATEGY_CHECKS}
ELSEWHERE = {
    "light_plugin",  # test_declaration.py: it takes an installed distribution
    "error_feedback",  # test_lossy_strategies.py: what rounds has other numbers than one process
}
EXHAUSTIVE = "EXHAUSTIVE" in os.environ
"""Try all checks that come before the one that must catch it: minutes."""


def size_for(name: str) -> int:
    return 2 if 2 in CHECKS[name].world_sizes else 1


LONG = {"preemption": pytest.mark.long, "other_world_size": pytest.mark.long}
RIGHT = [pytest.param(name, marks=LONG.get(name, ())) for name in CHECKS if name not in ELSEWHERE]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_strategy_passes(name: str) -> None:
    outcome = run_check(CHECKS[name], StrategySubject(Averaging), size_for(name))
    assert (outcome.verdict, outcome.reason) == ("passed", "")


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, ())) for name in WRONG])
def test_a_wrong_strategy_is_caught(name: str) -> None:
    strategy, words = WRONG[name]
    subject = StrategySubject(strategy)
    outcome = run_check(CHECKS[name], subject, size_for(name))
    assert outcome.verdict == "failed"
    assert words in outcome.reason
    # By that very check, and by none that it builds on.
    names = list(CHECKS)
    for earlier in names[: names.index(name)]:
        if earlier not in ELSEWHERE and (earlier == "parity" or EXHAUSTIVE):
            assert run_check(CHECKS[earlier], subject, size_for(earlier)).reason == "", earlier


def test_a_strategy_that_opens_no_collectives_fails_every_check() -> None:
    for name in ("ranks", "parity"):
        outcome = run_check(CHECKS[name], StrategySubject(OpensNothing), 2)
        assert outcome.verdict == "failed"
        assert "in OpensNothing.open_collectives" in outcome.reason


def test_collectives_that_take_unequal_shapes_are_caught() -> None:
    outcome = run_check(CHECKS["collectives"], StrategySubject(MixesShapesStrategy), 2)
    assert outcome.verdict == "failed"
    assert "all_gather" in outcome.reason or "unequal shapes" in outcome.reason


def test_a_barrier_that_does_nothing_is_caught() -> None:
    outcome = run_check(CHECKS["collectives"], StrategySubject(PassesBarriersStrategy), 2)
    assert outcome.verdict == "failed"
    assert "has passed the barrier before rank 0" in outcome.reason


@pytest.mark.parametrize(
    ("strategy", "words"),
    [(RoundsWeightsStrategy, "at a rate of zero"), (LeavesHalvesStrategy, "torch.bfloat16")],
)
def test_weights_that_mixed_precision_rounds_are_caught(strategy: type[Averaging], words: str) -> None:
    outcome = run_check(CHECKS["precisions"], StrategySubject(strategy), 1)
    assert outcome.verdict == "failed"
    assert "precision='bf16-mixed'" in outcome.reason
    assert words in outcome.reason


@pytest.mark.parametrize(
    ("strategy", "words"), [(CountsRuns, "'runs' after a run"), (PicklesLess, "'every' in its pickle")]
)
def test_settings_that_change_or_are_lost_are_caught(strategy: type[Averaging], words: str) -> None:
    outcome = run_check(CHECKS["configuration"], StrategySubject(strategy), 1)
    assert outcome.verdict == "failed"
    assert words in outcome.reason


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (KeepsNoOptimizers, "after loading, the loss of the actor in step 3"),
        (StepsPastTheModule, "the loss of the actor in step 0"),
    ],
)
def test_a_second_module_that_is_lost_is_caught(strategy: type[Averaging], words: str) -> None:
    outcome = run_check(CHECKS["own_loop"], StrategySubject(strategy), 2)
    assert outcome.verdict == "failed"
    assert words in outcome.reason


@pytest.mark.parametrize(
    ("check", "strategy", "words"), FURTHER, ids=[each.__name__ for _, each, _ in FURTHER]
)
def test_another_fault_of_a_check_is_caught(check: str, strategy: type[Averaging], words: str) -> None:
    outcome = run_check(CHECKS[check], StrategySubject(strategy), 2)
    assert outcome.verdict == "failed"
    assert words in outcome.reason


@pytest.mark.long
def test_a_resumed_run_whose_loader_workers_draw_other_numbers_is_caught() -> None:
    subject = StrategySubject(SeedsWorkersOnceStrategy, own_processes=True)
    outcome = run_check(CHECKS["preemption"], subject, 2)
    assert outcome.verdict == "failed"
    assert "and continued: the loss of micro-batch" in outcome.reason


def test_every_check_has_a_wrong_strategy() -> None:
    assert CHECKS.keys() == WRONG.keys() | ELSEWHERE
