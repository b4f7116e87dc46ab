"""What `torch.autograd.grad` returns for parameters is whole where ranks compute shards of one sequence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_testing import StrategySubject
from torch import Tensor, nn

SPLIT = {"parallelize": {"block": "tokenwise"}}
SUBJECTS = {
    "context_parallel": StrategySubject("context_parallel", world_size=2, options={"timeout_s": 60, **SPLIT}),
    "context=2": StrategySubject(
        "composition",
        world_size=2,
        options={"timeout_s": 60, "axes": "context=2", "axis_options": {"context": SPLIT}},
    ),
}
TAKEN = {
    "context_parallel": ("block.gain", "block.layer.weight", "scale"),
    "context=2": ("block.gain", "scale"),
}
"""Parameters that aren't sharded."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(3, 3), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) * self.gain


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.scale = nn.Linear(4, 3), Block(), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.block(self.first(x)) * self.scale
        return result


def taken(net: nn.Module, names: tuple[str, ...]) -> list[Tensor]:
    """Return gradients of a loss to which the shards of a sequence contribute unequally."""
    x = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(3))
    loss = (net(x).square() * torch.arange(8.0)[None, :, None]).mean()
    own = dict(net.named_parameters())
    return [each.detach().clone() for each in torch.autograd.grad(loss, [own[name] for name in names])]


def take(subject: StrategySubject, names: tuple[str, ...]) -> list[Tensor]:
    """Take gradients in an own loop, after a step that accumulates others. Run by every rank."""
    taken_here: list[Tensor] = subject.runtime(seed=7).launch(_take, names, quiet=True)
    return taken_here


def _take(runtime: Any, names: tuple[str, ...]) -> list[Tensor]:
    net = Net()
    net, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.0))
    runtime.backward(net(torch.ones(2, 8, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()
    return taken(net, names)


@pytest.mark.parametrize("name", SUBJECTS)
def test_they_are_those_of_one_process_on_every_rank(name: str, tmp_path: Path) -> None:
    expected = taken(Net(), TAKEN[name])
    for ours in replace(SUBJECTS[name], folder=str(tmp_path)).run(take, TAKEN[name]):
        for mine, theirs in zip(ours, expected):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
