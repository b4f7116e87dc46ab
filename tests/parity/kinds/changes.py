"""Changes in mid-run: of requires_grad, of weights in place, of averages kept beside the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parity.kind import Kind, stack


class Change(Kind, abstract=True):
    theme = "changes"

    def net(self) -> nn.Module:
        return stack()

    def optimizers(self, net: nn.Module) -> Any:
        # All parameters: also those that are frozen at the start.
        return torch.optim.SGD(net.parameters(), lr=self.lr)


class FrozenFromStart(Change):
    """Frozen from the start."""

    def net(self) -> nn.Module:
        net = stack()
        net[0][0].requires_grad_(False)
        return net


class UnfrozenEpoch(Change):
    """Unfrozen in mid-run, at an epoch's start."""

    epochs = 2

    def net(self) -> nn.Module:
        net = stack()
        net[0][0].requires_grad_(False)
        return net

    def on_epoch(self, net: nn.Module, epoch: int) -> None:
        if epoch == 1:
            net[0][0].requires_grad_(True)


class UnfrozenBatch(Change):
    """Unfrozen in mid-run, between two batches."""

    def net(self) -> nn.Module:
        net = stack()
        net[1][0].requires_grad_(False)
        return net

    def before_batch(self, net: nn.Module, index: int) -> None:
        if index == 2:
            net[1][0].requires_grad_(True)


class FrozenBatch(Change):
    """Frozen in mid-run, between two batches."""

    def before_batch(self, net: nn.Module, index: int) -> None:
        if index == 2:
            net[1][0].requires_grad_(False)


class UnfrozenAdam(UnfrozenEpoch):
    """Unfrozen in mid-run, with Adam, clipping and accumulation."""

    accumulate = 2
    max_norm = 0.5
    tolerance = 1e-3
    tolerance_reason = "Adam divides gradients by their size"

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.Adam(net.parameters(), lr=0.01)


class AddedGroup(UnfrozenEpoch):
    """Unfrozen in mid-run, and given to the optimizer by add_param_group."""

    def optimizers(self, net: nn.Module) -> Any:
        self.made = torch.optim.SGD([*net[1][0].parameters(), *net[2].parameters()], lr=self.lr)
        return self.made

    def on_epoch(self, net: nn.Module, epoch: int) -> None:
        if epoch == 1:
            net[0][0].requires_grad_(True)
            self.made.add_param_group({"params": list(net[0][0].parameters()), "lr": 0.05})


class Toggled(Change):
    """requires_grad toggled within the step."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        which = net[0][0] if context.index % 2 else net[1][0]
        net.requires_grad_(True)
        which.requires_grad_(False)
        return super().loss(net, batch, context)


class Pair(Kind, abstract=True):
    """A net, and a copy of it that isn't trained by gradients."""

    theme = "changes"

    def net(self) -> nn.Module:
        model = stack()
        other = copy.deepcopy(model).requires_grad_(False)
        return nn.ModuleDict({"model": model, "other": other})

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        return F.mse_loss(net["model"](batch[0]), batch[1])


@torch.no_grad()
def approach(net: nn.Module, decay: float = 0.7) -> None:
    for average, parameter in zip(net["other"].parameters(), net["model"].parameters()):
        average.mul_(decay).add_(parameter, alpha=1 - decay)


class Ema(Pair):
    """EMA of the weights, after each batch."""

    def after_batch(self, net: nn.Module, index: int) -> None:
        approach(net)


class TargetNetwork(Pair):
    """Target network that follows within the step (Polyak)."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        x, y = batch
        approach(net)
        with torch.no_grad():
            goal = y + 0.5 * net["other"](x)
        return F.mse_loss(net["model"](x), goal)


class TargetCopy(Pair):
    """Target network that takes the weights over every other batch."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        if context.index % 2:
            net["other"].load_state_dict(net["model"].state_dict())
        with torch.no_grad():
            goal = batch[1] + 0.5 * net["other"](batch[0])
        return F.mse_loss(net["model"](batch[0]), goal)


class Swa(Change):
    """SWA, by torch's AveragedModel."""

    epochs = 3

    def net(self) -> nn.Module:
        model = stack()
        average = torch.optim.swa_utils.AveragedModel(model).requires_grad_(False)
        return nn.ModuleDict({"model": model, "average": average})

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        return F.mse_loss(net["model"](batch[0]), batch[1])

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.SGD(net["model"].parameters(), lr=self.lr)

    def on_epoch(self, net: nn.Module, epoch: int) -> None:
        if epoch:
            net["average"].update_parameters(net["model"])


class ClampInStep(Change):
    """Weights clamped in place, within the step."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.clamp_(-0.15, 0.15)
        return super().loss(net, batch, context)


class ClampAfter(Change):
    """Weights clamped in place, after each batch."""

    def after_batch(self, net: nn.Module, index: int) -> None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.clamp_(-0.15, 0.15)


class RateByHand(Change):
    """The optimizer's rate set by hand in mid-run."""

    def optimizers(self, net: nn.Module) -> Any:
        self.made = torch.optim.SGD(net.parameters(), lr=self.lr)
        return self.made

    def before_batch(self, net: nn.Module, index: int) -> None:
        for group in self.made.param_groups:
            group["lr"] = 0.1 / (1 + index)
