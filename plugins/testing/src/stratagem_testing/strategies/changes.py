"""Changes between steps: frozen layers, values of parameters, and the groups of an optimizer."""

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


@dataclass(frozen=True)
class _Changing(Recipe):
    """The first layer is frozen, and not in the optimizer at first; see `_change`."""

    steps: int | None = 8
    by_hand: bool = False
    """Whether the optimizer itself calls `_change`, in plain torch, where there is no module with the hook."""

    def net(self) -> nn.Module:
        net: Any = super().net()
        net[0].requires_grad_(False)
        return net  # type: ignore[no-any-return]  # indexed above, which nn.Module doesn't declare

    def optimizers(self, net: Any) -> Sequence[Optimizer]:
        kind = _ChangedByItself if self.by_hand else torch.optim.SGD
        optimizer: Any = kind(net[2].parameters(), lr=0.1, momentum=0.9)
        optimizer.net = net
        return [optimizer]


class _ChangedByItself(torch.optim.SGD):
    net: nn.Module
    done = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        _change(self.net, self, self.done)
        super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        self.done += 1
        return super().step(closure)


def _change(net: Any, optimizer: Optimizer, done: int) -> None:
    """After step 2, train the first layer, too. Later, freeze a bias, and halve a weight and a learning rate."""
    if done == 2:
        net[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.05})
    elif done == 4:
        net[2].bias.requires_grad_(False)
    elif done == 6:
        optimizer.param_groups[1]["lr"] = 0.02
        with torch.no_grad():
            net[0].weight.mul_(0.5)


class _Changed(RecipeModule):
    changed = 0

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step > self.changed:
            self.changed = self.global_step
            _change(self.net, self.trainer.optimizers[0], self.global_step)


_train = partial(train, module_class=_Changed)


def _train_each(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[Trained]:
    return [_train(subject, recipe) for recipe in recipes]


@check(needs=["changes_between_steps"])
def check_changes_between_steps(subject: StrategySubject) -> None:
    """Layers frozen or unfrozen between steps, new parameter groups and changed values have one process's results."""
    recipes = (_Changing(), _Changing(accumulate=2))
    by_rank = subject.run(_train_each, recipes)
    for index, recipe in enumerate(recipes):
        ranks = [trained[index] for trained in by_rank]
        expect_plain(subject, ranks, recipe, plain=replace(recipe, by_hand=True), train=_train)
