"""Losses: none at times, over several ranks' samples, of gradients, of weights, of unequal lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parity.kind import SAMPLES, Kind, stack


class Losses(Kind, abstract=True):
    theme = "losses"

    def net(self) -> nn.Module:
        return stack()


class NoneEverywhere(Losses):
    """None for some batches, on all ranks."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        return None if context.index == 1 else super().loss(net, batch, context)


class NoneOnOneRank(Losses):
    """None for some batches, on one rank only."""

    per_share = asks_share = True
    per_share_reason = "the step asks which share it has"

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        if context.index == 1 and context.share == context.shares - 1:
            return None
        return super().loss(net, batch, context)


class NoneLast(Losses):
    """None for the last micro-batch of a window."""

    accumulate = 2

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        return None if context.index == 1 else super().loss(net, batch, context)


class NoneFirst(Losses):
    """None for the first micro-batch of a window."""

    accumulate = 2

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        return None if context.index == 2 else super().loss(net, batch, context)


class VariableLengths(Losses):
    """Sequences of other lengths in each batch and on each rank."""

    per_share = True
    per_share_reason = "the mean over tokens of a share, whose number differs from share to share"

    def sample(self, generator: torch.Generator) -> Any:
        length = int(torch.randint(4, 9, (1,), generator=generator))
        x = torch.randn(SAMPLES, length, 6, generator=generator)
        return x, torch.randint(1, length + 1, (SAMPLES,), generator=generator)

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        x, lengths = batch
        x = x[:, : int(lengths.max())]
        kept = torch.arange(x.shape[1]) < lengths[:, None]
        return net(x)[kept].square().mean()


class Contrastive(Losses):
    """Contrastive loss over all ranks' samples, by all_gather with gradients."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        x, _ = batch
        queries, keys = F.normalize(net(x), dim=-1), F.normalize(net(x + 0.1), dim=-1)
        scores = queries @ context.gather(keys).flatten(0, 1).T / 0.5
        first = context.share * len(x)
        return F.cross_entropy(scores, torch.arange(first, first + len(x)))


class GradientPenalty(Losses):
    """Gradient penalty, by create_graph."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        x = batch[0].clone().requires_grad_()
        scores = net(x)
        (grad,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        return F.mse_loss(scores, batch[1]) + 0.5 * (grad.norm(dim=-1) - 1).square().mean()


class WeightPenalty(Losses):
    """Penalty over all parameters in the loss."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        penalty = sum(parameter.square().sum() for parameter in net.parameters())
        return super().loss(net, batch, context) + 0.01 * penalty


class BlockPenalty(Losses):
    """Penalty over one block's weight in the loss."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        return super().loss(net, batch, context) + 0.05 * net[1][0].weight.abs().sum()


class OffsetLoss(Losses):
    """Loss with a frozen teacher beside the student."""

    def net(self) -> nn.Module:
        return nn.ModuleDict({"student": stack(), "teacher": stack().requires_grad_(False)})

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        with torch.no_grad():
            goal = net["teacher"](batch[0])
        return F.mse_loss(net["student"](batch[0]), goal)


class PartialForward(Losses):
    """Parts of the net called one by one in the step."""

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        x, y = batch
        for layer in net:
            x = layer(x)
        return F.mse_loss(x, y)
