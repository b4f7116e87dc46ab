"""What a training step may do with its parameters: freeze them, change them in place, add attributes and hooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from stratagem.errors import UsageError
from stratagem_testing.checks import check
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import expect_parity, expect_parity_or_refusal


class _Counted(nn.Sequential):
    """Counts the losses that were computed with it."""

    losses = 0

    def freeze(self, index: int, frozen: bool = True) -> None:
        self[index].requires_grad_(not frozen)


def _net() -> _Counted:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return _Counted(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4), nn.Identity())


@dataclass(frozen=True)
class _Fidelity(Recipe):
    steps: int | None = 12

    def net(self) -> nn.Module:
        return _net()

    def loss(self, net: nn.Module, batch: Any) -> Tensor | None:
        assert isinstance(net, _Counted)
        net.losses += 1
        self.before_loss(net)
        return super().loss(net, batch)

    def before_loss(self, net: _Counted) -> None:
        """Called at the beginning of a step."""


# Freezing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TwoLosses(_Fidelity):
    """Two losses, as in adversarial training. The second one gives a layer no gradients."""

    layer: int = 0

    def loss(self, net: nn.Module, batch: Any) -> Tensor | None:
        assert isinstance(net, _Counted)
        first = F.cross_entropy(net(batch[0]), batch[1])
        net.freeze(self.layer)
        second: Tensor = net(0.5 * batch[0]).square().mean()
        net.freeze(self.layer, False)
        return first + second


@check
def check_frozen_for_one_loss(subject: StrategySubject) -> None:
    """A layer that a step freezes for one of its losses gets only the gradients of the others."""
    expect_parity(subject, _TwoLosses(), _TwoLosses(layer=2))


@dataclass(frozen=True)
class _InMidRun(_Fidelity):
    """Freezes and unfreezes layers between steps. The optimizer has all parameters all the time."""

    def net(self) -> nn.Module:
        net = _net()
        net.freeze(0)
        return net

    def before_batch(self, net: nn.Module, index: int) -> None:
        assert isinstance(net, _Counted)
        if index == 4:
            net.freeze(0, False)
        if index == 8:
            net.freeze(2)


@check
def check_frozen_in_mid_run(subject: StrategySubject) -> None:
    """Layers that are unfrozen between two steps train from then on, and frozen ones don't; or it is refused."""
    expect_parity_or_refusal(subject, _InMidRun(), UsageError)


@dataclass(frozen=True)
class _FromAStepOn(_Fidelity):
    def before_loss(self, net: _Counted) -> None:
        if net.losses in (5, 9):
            net.freeze(0, net.losses == 5)


@check
def check_frozen_within_a_step(subject: StrategySubject) -> None:
    """Layers that a step freezes stay frozen in the next steps, until one unfreezes them; or it is refused."""
    expect_parity_or_refusal(subject, _FromAStepOn(), UsageError)


# Changes in place ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Clamped(_Fidelity):
    through_data: bool = False

    def before_loss(self, net: _Counted) -> None:
        if self.through_data:
            for parameter in net.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            return
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.clamp_(-0.1, 0.1)


@check
def check_changes_in_place(subject: StrategySubject) -> None:
    """Parameters that a step clamps, under no_grad or through `.data`, train on from the clamped values."""
    expect_parity(subject, _Clamped(), _Clamped(through_data=True))


class _WithTarget(nn.Module):
    """A net, and a frozen one whose parameters are a moving average of the first's."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = _net(), _net().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.online(x)
        return scores


@dataclass(frozen=True)
class _Following(Recipe):
    steps: int | None = 12

    def net(self) -> nn.Module:
        return _WithTarget()

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        assert isinstance(net, _WithTarget)
        with torch.no_grad():
            for target, online in zip(net.target.parameters(), net.online.parameters()):
                target.mul_(0.8).add_(online, alpha=0.2)
        distance = F.mse_loss(net.online(batch[0]), net.target(0.9 * batch[0]))
        loss = super().loss(net, batch)
        assert loss is not None
        return loss + distance

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9)]


@check
def check_target_network(subject: StrategySubject) -> None:
    """A target network, the moving average of the trained network, has the values of one process."""
    expect_parity(subject, _Following())


# What depends on parameter objects ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Marked(_Fidelity):
    def net(self) -> nn.Module:
        net = _net()
        for parameter in net.parameters():
            if parameter.dim() == 1:
                parameter.no_decay = True  # type: ignore[attr-defined]  # parameters take any attribute
        return net

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        decayed = [p for p in net.parameters() if not getattr(p, "no_decay", False)]
        others = [p for p in net.parameters() if getattr(p, "no_decay", False)]
        assert others, "the parameters have lost the attribute no_decay"
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": 0.5},
            {"params": others, "lr": 0.02},
        ]
        return [torch.optim.SGD(groups, lr=0.1, momentum=0.9)]


@check
def check_parameter_attributes(subject: StrategySubject) -> None:
    """Attributes that a module sets on its parameters are there when the optimizers are made."""
    expect_parity(subject, _Marked())


class _Listing(_Counted):
    """Also keeps its parameters in lists, as for groups of an optimizer."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__(*modules)
        self.matrices = [p for p in self.parameters() if p.dim() == 2]
        self.others = {"biases": [p for p in self.parameters() if p.dim() == 1]}


@dataclass(frozen=True)
class _Listed(_Fidelity):
    def net(self) -> nn.Module:
        return _Listing(_net())

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        assert isinstance(net, _Listing)
        groups: list[dict[str, Any]] = [
            {"params": net.matrices},
            {"params": net.others["biases"], "lr": 0.02},
        ]
        return [torch.optim.SGD(groups, lr=0.1, momentum=0.9)]


@check
def check_parameter_lists(subject: StrategySubject) -> None:
    """Parameters that a module keeps in lists, and passes to the optimizer from there, are trained."""
    expect_parity(subject, _Listed())


def _halved(gradient: Tensor) -> Tensor:
    return 0.5 * gradient


def _grow(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(1.25)


@dataclass(frozen=True)
class _Hooked(_Fidelity):
    accumulated: bool = False
    """Whether to use hooks that run after a gradient was accumulated."""

    def net(self) -> nn.Module:
        net = _net()
        for parameter in net[0].parameters():
            if self.accumulated:
                parameter.register_post_accumulate_grad_hook(_grow)  # type: ignore[no-untyped-call]  # torch has no types for it
            else:
                parameter.register_hook(_halved)  # type: ignore[no-untyped-call]  # torch has no types for it
        return net


@check
def check_parameter_hooks(subject: StrategySubject) -> None:
    """Hooks on parameters that scale gradients are called once per backward."""
    expect_parity(
        subject,
        _Hooked(),
        _Hooked(accumulated=True),
        _Hooked(accumulate=2),
        _Hooked(accumulate=2, accumulated=True),
    )
