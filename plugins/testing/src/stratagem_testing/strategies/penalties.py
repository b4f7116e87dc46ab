"""Losses that read parameters outside of their modules' forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stratagem.errors import StratagemError
from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.subject import SEED, StrategySubject
from stratagem_testing.trained import expect_plain, naming, train


class _Blocks(nn.Module):
    """A net with two layers in a ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.up(x))
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.out(x)
        return output


@dataclass(frozen=True)
class Penalized(Recipe):
    """A classification whose loss reads parameters directly."""

    kind: str = "penalty"
    steps: int | None = 4

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return _Blocks()

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        assert isinstance(net, _Blocks)
        x, target = batch
        if self.kind == "gradient penalty":
            x = x.clone().requires_grad_()
            output = net(x)
            (slope,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
            # Large enough that missing gradients of the penalty would show in the losses.
            return F.cross_entropy(output, target) + 100.0 * torch.mean(slope.square().sum(1))
        loss = F.cross_entropy(net(x), target)
        return torch.add(loss, self.penalty(net, x), alpha=0.1)

    def penalty(self, net: _Blocks, x: Tensor) -> Tensor:
        """Return the term that is added to the loss."""
        if self.kind == "penalty":
            summed: Any = sum(p.pow(2).sum() for p in net.parameters())
            return cast("Tensor", summed)
        first = net.blocks[0].get_submodule("0")
        assert isinstance(first, nn.Linear)
        if self.kind == "block penalty":
            return first.weight.pow(2).sum()
        return F.linear(torch.tanh(net.up(x)), first.weight).square().mean()


KINDS = ("penalty", "block penalty", "weight elsewhere", "gradient penalty")


def train_or_refuse(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[Trained | str]:
    """Train each recipe, or return why it is refused. Run by every rank."""
    results: list[Trained | str] = []
    for recipe in recipes:
        try:
            results.append(train(subject, recipe))
        except StratagemError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


def results_of(subject: StrategySubject, kinds: Sequence[str] = KINDS) -> dict[str, str]:
    """Expect plain torch's results for each kind, or a refusal on all ranks; return the refusals of rank 0."""
    recipes = [Penalized(kind=kind) for kind in kinds]
    by_rank = subject.run(train_or_refuse, recipes)
    refusals = {}
    for index, recipe in enumerate(recipes):
        ranks = [results[index] for results in by_rank]
        trained = [result for result in ranks if isinstance(result, Trained)]
        if len(trained) == len(ranks):
            expect_plain(subject, trained, recipe)
            continue
        with naming(recipe):
            expect(not trained, f"refused on some ranks only: {ranks}")
        refusals[recipe.kind] = str(ranks[0])
    return refusals


@check(world_sizes=(1, 2))
def check_penalties(subject: StrategySubject) -> None:
    """Losses that read weights or gradients have the results of one process, or are refused with a reason."""
    results_of(subject)
