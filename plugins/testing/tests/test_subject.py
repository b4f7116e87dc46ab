"""What a subject says of a check, and of a check at one world size alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from averaging import Averaging
from stratagem_testing import ConformanceError, StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.same import expect_same
from stratagem_testing.subject import TOLERANCES
from stratagem_testing.trained import plainly_for, train
from torch.optim import Optimizer

SUBJECT = StrategySubject(
    Averaging,
    options={"period": 1},
    options_for={"save_and_load": {"period": 3}, "save_and_load-4": {"period": 5}, "parity-2": {"period": 2}},
    tolerances={"bf16-mixed": 0.5},
    tolerances_for={"parity": {"32-true": 0.1}, "parity-4": {"32-true": 0.2, "bf16-mixed": 0.6}},
)


@pytest.mark.parametrize(
    ("check", "world_size", "tolerance", "mixed", "period"),
    [
        ("optimizers", 4, TOLERANCES["32-true"], 0.5, 1),
        ("parity", 1, 0.1, 0.5, 1),
        ("parity", 2, 0.1, 0.5, 2),
        ("parity", 4, 0.2, 0.6, 1),
        ("save_and_load", 2, TOLERANCES["32-true"], 0.5, 3),
        ("save_and_load", 4, TOLERANCES["32-true"], 0.5, 5),
    ],
)
def test_what_is_nearer_goes_first(
    check: str, world_size: int, tolerance: float, mixed: float, period: int
) -> None:
    subject = replace(SUBJECT, check=check, world_size=world_size)
    assert (subject.tolerance(), subject.tolerance("bf16-mixed")) == (tolerance, mixed)
    assert subject._options() == {"period": period}


def adam_of(optimizer: Optimizer) -> Optimizer:
    return torch.optim.Adam([p for group in optimizer.param_groups for p in group["params"]], lr=0.05)


def test_optimizers_are_replaced_under_the_strategy_and_in_plain_pytorch() -> None:
    recipe, subject = Recipe(steps=3), StrategySubject("ddp", optimizer=adam_of, world_size=2)
    plain = plainly_for(subject, recipe)
    expect_same(subject.run(train, recipe), plain, 1e-4)
    with pytest.raises(ConformanceError, match="the loss of micro-batch 1 is"):
        expect_same(replace(subject, optimizer=None).run(train, recipe), plain, 1e-2)
