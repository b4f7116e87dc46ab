"""How a model comes to be, and what is done to its blocks: late, lazy, counted, recomputed, compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.parity.kind import Kind, mlp, stack


class Construction(Kind, abstract=True):
    theme = "construction"


class ConfigureModel(Construction):
    """Net made in configure_model."""

    deferred = True


class LazyInitialized(Construction):
    """Lazy modules, initialized by a forward before the run."""

    def net(self) -> nn.Module:
        net = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(3))
        net(torch.zeros(1, 6))
        return net


class LazyUninitialized(Construction):
    """Lazy modules that the first batch is to initialize."""

    def net(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(3))

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(5)  # the first forward draws values
            return super().loss(net, batch, context)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("cache", torch.full((3,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.scale.mul_(0.9)
        return self.net(x) * self.scale + self.cache


class Buffers(Construction):
    """Buffers updated in forward, and one that isn't saved."""

    # Each forward counts, and a pipeline refuses to have one per part of a batch.
    options = {"pipeline": {"micro_batches": 1, "schedule": "gpipe"}}

    def net(self) -> nn.Module:
        return Counting()


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 16), mlp(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=False))


class ActivationCheckpointing(Construction):
    """Activation checkpointing of a block."""

    def net(self) -> nn.Module:
        return Recomputed()


class CompiledBlocks(Construction):
    """torch.compile of each block."""

    def net(self) -> nn.Module:
        net = stack()
        for block in net[:2]:
            block.compile(backend="aot_eager")
        return net


class CompiledWhole(Construction):
    """torch.compile of the whole net."""

    def net(self) -> nn.Module:
        return torch.compile(mlp(), backend="aot_eager")
