"""Training in several processes has the results of one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stratagem.sdk.catalogue import load_catalogue
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe
from stratagem_testing.same import expect_close
from stratagem_testing.subject import TOLERANCES, StrategySubject
from stratagem_testing.trained import Record, expect_parity, module_of, naming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer


@check
def check_parity(subject: StrategySubject) -> None:
    """20 steps have the losses and weights of plain PyTorch in one process on the same global batches."""
    expect_parity(subject, Recipe())


@check(world_sizes=(1, 2))
def check_precisions(subject: StrategySubject) -> None:
    """In each declared precision, 20 steps stay within its tolerance. Mixed precisions don't round weights."""
    possible = sorted(possible_precisions(subject))
    if not possible:
        raise NotApplicable("32-true is the only precision that it supports here")
    expect_parity(subject, *(Recipe(precision=precision) for precision in possible))
    for precision in possible:
        if precision.endswith("-mixed"):
            recipe = _Resting(precision=precision)
            with naming(recipe):
                _expect_unrounded(subject, recipe)


@dataclass(frozen=True)
class _Resting(Recipe):
    """Steps with a learning rate of zero, and a frozen parameter: all weights keep their values."""

    steps: int | None = 2

    def net(self) -> nn.Module:
        net = super().net()
        next(net.parameters()).requires_grad_(False)
        return net

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.SGD(net.parameters(), lr=0.0)]


def _expect_unrounded(subject: StrategySubject, recipe: Recipe) -> None:
    for rank, (weights, dtypes) in enumerate(subject.run(_rest, recipe)):
        expect_close(weights, recipe.net().state_dict(), 0.0, f"at a rate of zero, rank {rank}")
        expect(
            dtypes == {torch.float32},
            f"rank {rank} has parameters of {sorted(map(str, dtypes))} after the run, but had them in float32",
        )


def _rest(subject: StrategySubject, recipe: Recipe) -> tuple[dict[str, Tensor], set[torch.dtype]]:
    """Train; return what was saved, and the dtypes of the module's parameters after the run. Run by every rank."""
    module, record = module_of(subject, recipe), Record(subject.folder)
    subject.trainer(max_steps=recipe.steps, precision=recipe.precision, callbacks=[record]).fit(module)
    return record.weights, {parameter.dtype for parameter in module.parameters()}


def possible_precisions(subject: StrategySubject) -> set[str]:
    """Return the precisions other than 32-true that the strategy declares and the accelerator supports."""
    catalogue = load_catalogue()
    accelerator = catalogue.find("accelerator", subject.accelerator).load()()
    declared = subject.capabilities.precisions
    return {
        name
        for name in TOLERANCES.keys() - {"32-true"}
        if ("*" in declared or name in declared)
        and accelerator.refuse_precision(name) is None
        and not subject.refuses_precision(name)
    }
