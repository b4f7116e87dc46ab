"""Clipping gradients before a step."""

from __future__ import annotations

from stratagem_testing.checks import check
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import expect_parity


@check(needs=["norm_clipping"])
def check_norm_clipping(subject: StrategySubject) -> None:
    """Gradients are clipped by the norm over all parameters and ranks, after they were reduced."""
    expect_parity(
        subject,
        Recipe(max_norm=0.05, steps=10),
        Recipe(max_norm=0.05, steps=6, accumulate=2),
        Recipe(max_norm=1e6, steps=4),
    )


@check(needs=["value_clipping"])
def check_value_clipping(subject: StrategySubject) -> None:
    """Each element of a gradient is clipped by value, after gradients were reduced."""
    expect_parity(subject, Recipe(max_value=5e-3, steps=10), Recipe(max_value=5e-3, steps=6, accumulate=2))
