"""Training in several processes gives the numbers of one."""

from __future__ import annotations

from stratagem.plugins import load_catalogue
from stratagem.testing.checks import NotApplicable, check
from stratagem.testing.recipe import Recipe
from stratagem.testing.subject import TOLERANCES, StrategySubject
from stratagem.testing.trained import expect_parity


@check
def check_parity(subject: StrategySubject) -> None:
    """20 steps give the losses and the weights of plain PyTorch in one process on the same global batches."""
    expect_parity(subject, Recipe())


@check(world_sizes=(1, 2))
def check_precisions(subject: StrategySubject) -> None:
    """In each precision that it declares, 20 steps stay within that precision's tolerance."""
    expect_parity(subject, *(Recipe(precision=precision) for precision in sorted(_possible(subject))))


def _possible(subject: StrategySubject) -> set[str]:
    catalogue = load_catalogue()
    accelerator = catalogue.find("accelerator", subject.accelerator).load()()
    declared = subject.capabilities.precisions
    possible = {
        name
        for name in TOLERANCES.keys() - {"32-true"}
        if ("*" in declared or name in declared)
        and accelerator.refuse_precision(name) is None
        and not subject.refuses_precision(name)
    }
    if not possible:
        raise NotApplicable("it has no precision but 32-true here")
    return possible
