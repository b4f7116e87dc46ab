"""What happens around a step: accumulation, clipping, several losses, manual optimization."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.parity.kind import Kind, stack


class Step(Kind, abstract=True):
    theme = "steps"

    def net(self) -> nn.Module:
        return stack()


class ClipNorm(Step):
    """Clipping by norm."""

    max_norm = 0.1


class ClipValue(Step):
    """Clipping by value."""

    max_value = 0.01


class Accumulation(Step):
    """Accumulation with a partial last window."""

    accumulate = 3
    count = 8


class AccumulationClipped(Step):
    """Accumulation, clipping by norm, Adam and two epochs."""

    accumulate = 2
    count = 5
    epochs = 2
    max_norm = 0.05
    tolerance = 1e-3
    tolerance_reason = "Adam divides gradients by their size"

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.Adam(net.parameters(), lr=0.01)


class TwoLosses(Step):
    """Two losses of two heads, added."""

    def net(self) -> nn.Module:
        return nn.ModuleDict({"trunk": stack(6, 8), "one": nn.Linear(8, 3), "two": nn.Linear(8, 3)})

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        x, y = batch
        hidden = net["trunk"](x)
        return F.mse_loss(net["one"](hidden), y) + 0.5 * F.l1_loss(net["two"](hidden), -y)


class Manual(Step):
    """Manual optimization with one optimizer."""

    manual = True

    def manual_step(self, net: nn.Module, batch: Any, context: Any) -> None:
        (optimizer,) = context.optimizers
        optimizer.zero_grad()
        context.backward(F.mse_loss(net(batch[0]), batch[1]))
        optimizer.step()


class ManualTwoBackwards(Step):
    """Manual optimization with two backward passes per step."""

    manual = True

    def manual_step(self, net: nn.Module, batch: Any, context: Any) -> None:
        (optimizer,) = context.optimizers
        optimizer.zero_grad()
        context.backward(F.mse_loss(net(batch[0]), batch[1]))
        context.backward(0.5 * F.l1_loss(net(batch[0]), batch[1]))
        optimizer.step()


class Gan(Step):
    """GAN: two nets in turn, by manual optimization."""

    manual = True

    def net(self) -> nn.Module:
        return nn.ModuleDict({"generator": stack(6, 3), "critic": stack(3, 1)})

    def manual_step(self, net: nn.Module, batch: Any, context: Any) -> None:
        noise, real = batch
        critic, generator = context.optimizers
        critic.zero_grad()
        fake = net["generator"](noise).detach()
        context.backward(F.softplus(-net["critic"](real)).mean() + F.softplus(net["critic"](fake)).mean())
        critic.step()
        generator.zero_grad()
        context.backward(F.softplus(-net["critic"](net["generator"](noise))).mean())
        generator.step()

    def optimizers(self, net: nn.Module) -> Any:
        return [
            torch.optim.SGD(net["critic"].parameters(), lr=0.1),
            torch.optim.SGD(net["generator"].parameters(), lr=0.1),
        ]


class GanFrozenCritic(Gan):
    """GAN whose critic is frozen while the generator trains."""

    def manual_step(self, net: nn.Module, batch: Any, context: Any) -> None:
        noise, real = batch
        critic, generator = context.optimizers
        critic.zero_grad()
        fake = net["generator"](noise).detach()
        context.backward(F.softplus(-net["critic"](real)).mean() + F.softplus(net["critic"](fake)).mean())
        critic.step()
        net["critic"].requires_grad_(False)
        generator.zero_grad()
        context.backward(F.softplus(-net["critic"](net["generator"](noise))).mean())
        generator.step()
        net["critic"].requires_grad_(True)
