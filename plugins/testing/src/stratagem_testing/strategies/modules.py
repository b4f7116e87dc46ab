"""Modules with special parameters: unused, tied, sparse, frozen, or different on each rank; and with buffers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

from stratagem.errors import ConfigError, StratagemError
from stratagem_testing.checks import check
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import expect_parity, expect_parity_or_refusal


def _seeded(seed: int, kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind()


class _Spare(nn.Module):
    """Has a layer that its forward doesn't use."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(8, 8)
        self.spare = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.used(x))
        return hidden


class _WithSpare(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), _Spare(), nn.Linear(8, 4))


@dataclass(frozen=True)
class _Unused(Recipe):
    steps: int | None = 8

    def net(self) -> nn.Module:
        return _seeded(3, _WithSpare)

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)]


@check
def check_unused_parameters(subject: StrategySubject) -> None:
    """Parameters that no forward uses keep their values, and the others train."""
    expect_parity(subject, _Unused())


class _Gated(nn.Module):
    """Has a layer that its forward uses only for some samples."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.seldom = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.always(x)
        chosen = x[:, :1] > 0.6
        if chosen.any():
            hidden = hidden + chosen * self.seldom(x)
        return torch.tanh(hidden)


class _WithGated(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), _Gated(), nn.Linear(8, 4))


@dataclass(frozen=True)
class _SeldomUsed(_Unused):
    global_batch: int = 8

    def net(self) -> nn.Module:
        return _seeded(3, _WithGated)


@check(world_sizes=(2, 4))
def check_used_on_some_ranks(subject: StrategySubject) -> None:
    """Parameters that only some ranks use in a step train as in one process; or the run ends with an error."""
    expect_parity_or_refusal(subject, _SeldomUsed(), StratagemError)


class _Tied(nn.Sequential):
    """Its embedding and its last layer share one matrix."""

    def __init__(self) -> None:
        embedding, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        head.weight = embedding.weight
        super().__init__(embedding, nn.Linear(8, 8), nn.Tanh(), head)


@dataclass(frozen=True)
class _TiedRecipe(Recipe):
    steps: int | None = 10

    def net(self) -> nn.Module:
        return _seeded(3, _Tied)

    def dataset(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(5)
        tokens = torch.randint(12, (self.samples,), generator=generator)
        return TensorDataset(tokens, (tokens * 5 + 1) % 12)


@check
def check_tied_weights(subject: StrategySubject) -> None:
    """A parameter with two names gets the gradients of both uses, and both names have its values."""
    expect_parity(subject, _TiedRecipe())


class _SparseNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Embedding(12, 8, sparse=True), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 12))


@dataclass(frozen=True)
class _Sparse(_TiedRecipe):
    def net(self) -> nn.Module:
        return _seeded(3, _SparseNet)

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.SGD(net.parameters(), lr=0.1)]


@check(needs=["sparse_gradients"])
def check_sparse_gradients(subject: StrategySubject) -> None:
    """An embedding with sparse gradients trains as in one process."""
    if subject.accelerator == "cpu":
        expect_parity(subject, _Sparse())
    else:
        expect_parity_or_refusal(subject, _Sparse(), ConfigError)  # nccl can't reduce sparse gradients


@dataclass(frozen=True)
class _Frozen(Recipe):
    steps: int | None = 8
    everything: bool = False
    """Whether the optimizer also has the frozen parameters."""

    def net(self) -> nn.Module:
        net = super().net()
        assert isinstance(net, nn.Sequential)
        net[0].requires_grad_(False)
        return net

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        trained = [p for p in net.parameters() if self.everything or p.requires_grad]
        return [torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.1)]


@check
def check_frozen_parameters(subject: StrategySubject) -> None:
    """Frozen parameters keep their values, and are in the checkpoint."""
    expect_parity(subject, _Frozen(), _Frozen(everything=True))


class _Counting(nn.Module):
    """Has buffers that each forward changes, one of which isn't saved."""

    count: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("shift", torch.full((4,), 0.1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.count += 1
                self.scale *= 0.95
                self.shift += 0.05
        scores: Tensor = self.layer(x) * self.scale + self.shift * self.layer.bias
        return scores


class _Buffered(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(_Counting(), nn.Tanh(), nn.Linear(4, 4), nn.Identity())


@dataclass(frozen=True)
class _Buffers(Recipe):
    steps: int | None = 10

    def net(self) -> nn.Module:
        return _seeded(3, _Buffered)


class _WithNorm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


@dataclass(frozen=True)
class _Normed(_Buffers):
    def net(self) -> nn.Module:
        return _seeded(3, _WithNorm)


@check
def check_buffers(subject: StrategySubject) -> None:
    """Buffers that a forward changes have the values of one process, and are in the checkpoint."""
    # Each rank's BatchNorm has statistics of its own samples only, so that is compared on one rank.
    expect_parity(subject, _Buffers(), *([_Normed()] if subject.world_size == 1 else []))


class _Own(_Buffered):
    """Has different initial values on each rank, also of frozen parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        counting, _, frozen, _ = self
        assert isinstance(counting, _Counting)
        frozen.requires_grad_(False)
        counting.scale += int(os.environ.get("RANK", 0))


@dataclass(frozen=True)
class _OwnStart(Recipe):
    steps: int | None = 4

    def net(self) -> nn.Module:
        return _seeded(3 + int(os.environ.get("RANK", 0)), _Own)

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9)]


@check
def check_same_start(subject: StrategySubject) -> None:
    """If ranks make different parameters and buffers, all ranks train rank 0's."""
    expect_parity(subject, _OwnStart())
