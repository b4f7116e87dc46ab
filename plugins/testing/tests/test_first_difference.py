"""A failed comparison with plain torch names the first module or tensor that differs."""

from __future__ import annotations

from typing import Any

import pytest
from averaging import AveragedPrepared, Averaging
from planting import compares_nothing, faults_of
from stratagem_testing import StrategySubject
from stratagem_testing.first_difference import first_difference
from stratagem_testing.recipe import Recipe
from stratagem_testing.trained import train
from wrong_strategies import StepsWithoutALoss  # noqa: F401  # plants its faults


class StepsOnFirst(AveragedPrepared):
    replicas = compares_nothing

    def step(self, index: int, closure: Any = None) -> bool:
        return super().step(index, closure) if self.request.collectives.rank == 0 else True


class StepsOnFirstRank(Averaging):
    prepared = StepsOnFirst


FAULTS = {fault.name: fault for fault in faults_of("exact")}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "AveragesTwice",
            "the gradients of all 4 parameters, first '0.weight', differ on all ranks: B's are",
        ),
        ("KeepsTheLastMicroBatch", "Likely: about 1 of 2 micro-batches missing"),
        ("KeepsTheRate", "Step 4: parameter '0.weight' differs after its update"),
        ("FillsTheLastBatch", "Step 3: the batches differ on all ranks: A has 14 samples and B 16"),
        ("StepsWithoutALoss", "Step 3: the optimizer's 'momentum_buffer' of parameter '0.weight' differs"),
    ],
)
def test_a_failure_ends_with_the_first_place_that_differs(fault: str, words: str) -> None:
    outcome = FAULTS[fault].run_check()
    assert outcome.verdict == "failed"
    _, _, ending = outcome.reason.partition(
        ". The first difference between plain torch (A) and the strategy (B): "
    )
    assert words in ending, outcome.reason


def test_a_right_strategy_has_no_difference() -> None:
    subject = StrategySubject(Averaging, world_size=2)
    assert first_difference(subject, Recipe(steps=3), Recipe(steps=3), train).startswith("The runs agree")


def test_another_recipe_is_found_by_its_first_difference() -> None:
    subject = StrategySubject(Averaging, world_size=2)
    found = first_difference(subject, Recipe(max_norm=0.05, steps=3), Recipe(steps=3), train)
    assert found.startswith(
        "Step 1: the gradients of all 4 parameters, first '0.weight', differ on all ranks"
    )


def test_a_rank_that_makes_no_step_is_named() -> None:
    found = first_difference(
        StrategySubject(StepsOnFirstRank, world_size=2), Recipe(steps=3), Recipe(steps=3), train
    )
    assert "rank 1 of the record" in found
    assert "made no optimizer step, and rank 0 made 3" in found


def fails(*_: object) -> None:
    raise ValueError("the engine has no such thing")


def test_a_strategy_that_fails_in_the_other_run_says_so() -> None:
    found = first_difference(StrategySubject(Averaging, world_size=2), Recipe(), Recipe(), fails)
    assert found == "stratagem diff can't find it: ValueError: the engine has no such thing"
