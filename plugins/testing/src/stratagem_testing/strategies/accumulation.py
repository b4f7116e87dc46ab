"""Several micro-batches per optimizer step."""

from __future__ import annotations

from stratagem_testing.checks import check
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import expect_parity


@check
def check_accumulation(subject: StrategySubject) -> None:
    """Steps of 2 and of 4 micro-batches give the numbers of one process, loss by loss."""
    expect_parity(subject, Recipe(accumulate=2), Recipe(accumulate=4))


@check
def check_partial_window(subject: StrategySubject) -> None:
    """An epoch's last step has the micro-batches that are left, and their mean, not that of a full step."""
    # 10 micro-batches per epoch in steps of 4, 4 and 2.
    expect_parity(subject, Recipe(accumulate=4, global_batch=32, samples=80, epochs=3, steps=None))
