"""Bugs of layers that are split among ranks, which all read the same rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss
from torch.optim import AdamW

from tests.corpus.bug import ROWS, Bug, Case, make_net

POSITIONS = 6


class _Sum(torch.autograd.Function):
    """The sum over ranks; each rank has the whole gradient of it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _Positions(torch.autograd.Function):
    """Positions of all ranks; the gradient is the sum over ranks of that of the own positions."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Down(nn.Linear):
    """A layer whose columns may be split among ranks."""

    is_split = False
    added_by_all = False
    """Whether each rank adds the bias to its part of the sum."""
    divided = False
    """Whether each rank adds its share of the bias, with a gradient of the share."""

    def forward(self, rows: Tensor) -> Tensor:
        if not self.is_split:
            return super().forward(rows)
        part = linear(rows, self.weight)
        if self.added_by_all:
            return self._sum(part + self.bias)
        if self.divided:
            return self._sum(part + self.bias / dist.get_world_size())
        return self._sum(part) + self.bias

    def _sum(self, part: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(part)  # type: ignore[no-untyped-call]  # torch has no types for it
        return total


class Block(nn.Module):
    """A normalization, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 16)
        self.down = Down(16, 6)
        self.is_split = False

    def forward(self, rows: Tensor) -> Tensor:
        if self.is_split:
            rows = rows.chunk(dist.get_world_size(), 1)[dist.get_rank()]
        normed = self.norm(rows)
        if self.is_split:
            normed = _Positions.apply(normed)  # type: ignore[no-untyped-call]  # torch has no types for it
        values: Tensor = self.down(self.up(normed).tanh())
        return values


def _block(case: Case) -> Any:
    net = make_net(Block)
    if not case.is_reference:
        own = slice(case.rank * 8, case.rank * 8 + 8)
        net.up.weight = nn.Parameter(net.up.weight.detach()[own].clone())
        net.up.bias = nn.Parameter(net.up.bias.detach()[own].clone())
        net.down.weight = nn.Parameter(net.down.weight.detach()[:, own].clone())
        net.is_split = net.down.is_split = True
    return net


def _train(case: Case, net: Any, *, reduce_norm: bool = True) -> None:
    optimizer = AdamW(net.parameters())
    generator = torch.Generator().manual_seed(1)
    with case.record(net, optimizer):
        for _ in range(3):
            rows = torch.randn(ROWS, POSITIONS, 6, generator=generator)
            mse_loss(net(rows), rows.roll(1, 2)).backward()
            if reduce_norm and not case.is_reference:
                for parameter in net.norm.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()


def bias_of_each_rank(case: Case) -> None:
    """Each rank adds the bias to its part of a sum over ranks."""
    net = _block(case)
    net.down.added_by_all = case.is_wrong
    _train(case, net)


def share_of_bias(case: Case) -> None:
    """Each rank adds its share of the bias, and autograd divides the gradient of the whole bias, too."""
    net = _block(case)
    net.down.divided = case.is_wrong
    _train(case, net)


def norm_of_own_positions(case: Case) -> None:
    """A normalization sees the positions of its own rank, and nothing adds up its gradients."""
    _train(case, _block(case), reduce_norm=not case.is_wrong)


GITHUB = "https://github.com"

BUGS = (
    Bug(
        bias_of_each_rank, "tensor", "tensor parallelism", f"{GITHUB}/awslabs/slapo/issues/10", "output down"
    ),
    Bug(
        share_of_bias,
        "tensor",
        "tensor parallelism",
        f"{GITHUB}/pytorch/torchtitan/pull/4332",
        "parameter gradient down.bias",
    ),
    Bug(
        norm_of_own_positions,
        "sequence",
        "sequence parallelism",
        f"{GITHUB}/NVIDIA/Megatron-LM/issues/1446",
        "parameter gradient norm.*",
    ),
)
"""In the order of docs/corpus.md."""
