"""Optimizers and learning rate schedulers, by the trainer and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer, lr_scheduler

from stratagem.testing.checks import check
from stratagem.testing.recipe import Recipe, Schedule
from stratagem.testing.subject import StrategySubject
from stratagem.testing.trained import expect_parity

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
    """SGD, Adam, AdamW, Adagrad, RMSprop and groups of parameters step as in one process."""
    # Where a gradient is nearly zero, Adam divides one rounding error by another.
    expect_parity(subject, *(_With(kind=kind) for kind in _KINDS), _Groups(), factor=50)


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
    """Learning rates change per step, per epoch and by a metric as in one process."""
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
    """Two optimizers, each with its part of the parameters, both step."""
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
class _Manual(Recipe):
    steps: int | None = 10
    manual: bool = True

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return TWO_OPTIMIZERS.optimizers(net)

    def manual_step(
        self, net: nn.Module, batch: Any, optimizers: Sequence[Any], backward: Callable[[Tensor], Any]
    ) -> Tensor:
        # One step after the other, each with a backward of its own, as in adversarial training.
        for optimizer in optimizers:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(batch[0]), batch[1])
            backward(loss)
            optimizer.step()
        return loss


MANUAL = _Manual()


@check(needs=["manual_backward", "several_optimizers"])
def check_manual_optimization(subject: StrategySubject) -> None:
    """A module that runs backward and steps itself, twice per batch, gives the numbers of one process."""
    expect_parity(subject, MANUAL)
