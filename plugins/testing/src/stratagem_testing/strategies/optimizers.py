"""Optimizers and learning rate schedulers, stepped by the trainer or manually."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import Dataset, TensorDataset

from stratagem.errors import CombinationError
from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.reference import Schedule
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import expect_parity, expect_plain, naming, train

_KINDS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
}


@dataclass(frozen=True)
class _With(Recipe):
    steps: int | None = 8
    kind: str = "SGD"

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [_KINDS[self.kind](net.parameters())]


@dataclass(frozen=True)
class _Groups(Recipe):
    steps: int | None = 8

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        named = list(net.named_parameters())
        decayed = [p for name, p in named if name.endswith("weight")]
        others = [p for name, p in named if not name.endswith("weight")]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": 0.1},
            {"params": others, "lr": 5e-2, "weight_decay": 0.0},
        ]
        return [torch.optim.AdamW(groups, lr=1e-2)]


@check
def check_optimizers(subject: StrategySubject) -> None:
    """SGD, Adam, AdamW, Adagrad, RMSprop and parameter groups step as in one process."""
    # If a gradient is nearly zero, Adam divides one rounding error by another: allow a larger difference.
    expect_parity(subject, *(_With(kind=kind) for kind in _KINDS), _Groups(), factor=50)


class OwnGlobalNorm(torch.optim.SGD):
    """A user's optimizer that clips the norm of all gradients itself."""

    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad *= 0.05 / norm.clamp(min=0.05)
        return super().step(closure)


_FURTHER: dict[str, Callable[[Any], Optimizer]] = {
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "OwnGlobalNorm": lambda p: OwnGlobalNorm(p, lr=0.1, momentum=0.9),
}
_WARMED_UP = ("Adafactor", "OwnGlobalNorm")
"""Optimizers that are also tried with a rate of 0 at first. A trial of the optimizer at that rate shows nothing."""


@dataclass(frozen=True)
class _WithFurther(Recipe):
    steps: int | None = 6
    kind: str = "Rprop"
    warms_up: bool = False

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [_FURTHER[self.kind](net.parameters())]

    def schedules(self, optimizers: Sequence[Optimizer]) -> Sequence[Schedule]:
        (optimizer,) = optimizers
        return [(lr_scheduler.LambdaLR(optimizer, lambda step: step / 3), "step")] if self.warms_up else []


def _train_or_refuse(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[Trained | str]:
    """Train each recipe that isn't refused. Run by every rank."""
    results: list[Trained | str] = []
    for recipe in recipes:
        try:
            results.append(train(subject, recipe))
        except CombinationError as error:
            results.append(str(error))
    return results


@check(world_sizes=(1, 2))
def check_whole_optimizers(subject: StrategySubject) -> None:
    """Optimizers that need whole tensors, or all gradients together, step as in one process, or are refused."""
    recipes = [_WithFurther(kind=kind) for kind in _FURTHER]
    recipes += [_WithFurther(kind=kind, warms_up=True) for kind in _WARMED_UP]
    by_rank = subject.run(_train_or_refuse, recipes)
    for index, recipe in enumerate(recipes):
        ranks = [results[index] for results in by_rank]
        trained = [result for result in ranks if isinstance(result, Trained)]
        if len(trained) == len(ranks):
            expect_plain(subject, trained, recipe, factor=50)
            continue
        with naming(recipe):
            expect(
                all(isinstance(result, str) and recipe.kind in result for result in ranks),
                f"it was refused only on some ranks, or not by its name: {ranks}",
            )


@dataclass(frozen=True)
class _Scheduled(Recipe):
    samples: int = 64
    steps: int | None = None
    epochs: int | None = 4
    kind: str = "step"

    def schedules(self, optimizers: Sequence[Optimizer]) -> Sequence[Schedule]:
        (optimizer,) = optimizers
        if self.kind == "step":
            return [(lr_scheduler.StepLR(optimizer, 3, 0.5), "step")]
        if self.kind == "cycle":
            return [(lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=16), "step")]
        if self.kind == "cosine":
            return [(lr_scheduler.CosineAnnealingLR(optimizer, 4), "epoch")]
        return [(lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5), "epoch")]


@check
def check_schedulers(subject: StrategySubject) -> None:
    """Learning rates change per step, per epoch and by a metric, as in one process."""
    kinds = ("step", "cycle", "cosine")
    plateau = _Scheduled(kind="plateau", monitored=True)
    expect_parity(subject, *(_Scheduled(kind=kind) for kind in kinds), plateau)


@dataclass(frozen=True)
class _TwoOptimizers(Recipe):
    steps: int | None = 10

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        assert isinstance(net, nn.Sequential)
        return [
            torch.optim.SGD(net[0].parameters(), lr=0.2),
            torch.optim.SGD(net[2].parameters(), lr=0.05, momentum=0.9),
        ]


TWO_OPTIMIZERS = _TwoOptimizers()


@check(needs=["several_optimizers"])
def check_several_optimizers(subject: StrategySubject) -> None:
    """Two optimizers, each with some of the parameters, both step as in one process."""
    expect_parity(subject, TWO_OPTIMIZERS, _TwoOptimizers(accumulate=2))


@dataclass(frozen=True)
class _Closure(Recipe):
    steps: int | None = 5
    closure: bool = True
    global_batch: int = 32

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)]


CLOSURE = _Closure()


@check(needs=["closure"])
def check_closure(subject: StrategySubject) -> None:
    """An optimizer that evaluates the loss several times per step, LBFGS, steps as in one process."""
    expect_parity(subject, CLOSURE, factor=50)


@dataclass(frozen=True)
class _LineSearch(Recipe):
    steps: int | None = 12
    closure: bool = True
    global_batch: int = 32

    # float64, because rounding errors change the decisions of a line search.
    def net(self) -> nn.Module:
        return super().net().double()

    def dataset(self) -> Dataset[Any]:
        samples = super().dataset()
        assert isinstance(samples, TensorDataset)
        x, labels = samples.tensors
        return TensorDataset(x.double(), labels)

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=6, line_search_fn="strong_wolfe")]


@check(needs=["closure"])
def check_line_search(subject: StrategySubject) -> None:
    """An optimizer that decides by the closure's loss (LBFGS with a line search) gets the mean over ranks."""
    expect_parity(subject, _LineSearch())


@dataclass(frozen=True)
class _Manual(Recipe):
    steps: int | None = 10
    manual: bool = True

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return TWO_OPTIMIZERS.optimizers(net)

    def manual_step(
        self, net: nn.Module, batch: Any, optimizers: Sequence[Any], backward: Callable[[Tensor], Any]
    ) -> Tensor:
        # One step after the other, each with its own backward, as in adversarial training.
        for optimizer in optimizers:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(batch[0]), batch[1])
            backward(loss)
            optimizer.step()
        return loss


MANUAL = _Manual()


@check(needs=["manual_backward", "several_optimizers"])
def check_manual_optimization(subject: StrategySubject) -> None:
    """A module that runs backward and steps itself, twice per batch, has the results of one process."""
    expect_parity(subject, MANUAL)
