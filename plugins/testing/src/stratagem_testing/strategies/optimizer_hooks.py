"""The module's own hooks for optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem_testing.checks import check
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import RecipeModule, expect_plain, train

_MAX_NORM = 0.05


@dataclass(frozen=True)
class _WarmUp(Recipe):
    """The learning rate grows over the first steps, and gradients are clipped."""

    steps: int | None = 8
    by_hand: bool = False
    """Whether the optimizer itself does what the hooks do, in plain torch, where there is no module with hooks."""

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        kind = _WarmingUp if self.by_hand else torch.optim.SGD
        return [kind(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)]


class _WarmingUp(torch.optim.SGD):
    done = 0

    def step(self, closure: Any = None) -> Any:
        _warm_up(self.param_groups, self.done)
        self.done += 1
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], _MAX_NORM)
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=False)


def _warm_up(groups: Sequence[dict[str, Any]], done: int) -> None:
    for group in groups:
        group["lr"] = 0.1 * min(1.0, (done + 1) / 5)


class _Hooked(RecipeModule):
    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        _warm_up(optimizer.param_groups, self.global_step)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None, gradient_clip_algorithm: str | None
    ) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=_MAX_NORM, gradient_clip_algorithm="norm")

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


_train = partial(train, module_class=_Hooked)


def _train_each(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[Trained]:
    return [_train(subject, recipe) for recipe in recipes]


@check(needs=["optimizer_hooks", "norm_clipping"])
def check_optimizer_hooks(subject: StrategySubject) -> None:
    """A module's optimizer_step, configure_gradient_clipping and optimizer_zero_grad apply to its steps."""
    recipes = (_WarmUp(), _WarmUp(accumulate=2))
    by_rank = subject.run(_train_each, recipes)
    for index, recipe in enumerate(recipes):
        ranks = [trained[index] for trained in by_rank]
        expect_plain(subject, ranks, recipe, plain=replace(recipe, by_hand=True), train=_train)
