"""A loop of one's own over LBFGS with a line search, held against plain torch on the global batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem

STEPS = 10


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    x = torch.randn(16, 5, dtype=torch.float64)
    return net, x, torch.sin(3 * x.sum(1, keepdim=True))


def lbfgs(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(net.parameters(), max_iter=6, line_search_fn="strong_wolfe")


def searched(runtime: Any, compares: bool) -> list[Tensor]:
    plain, x, y = problem()
    net, optimizer = runtime.setup(plain, lbfgs(plain))
    assert compares == (runtime.config.check_replicas_every > 0)
    size = len(x) // runtime.world_size
    own = slice(runtime.rank * size, (runtime.rank + 1) * size)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x[own]), y[own])
        runtime.backward(loss)
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return [parameter.detach() for parameter in plain.parameters()]


@pytest.mark.parametrize(("devices", "every"), [(2, 100), (4, 0)])
def test_all_ranks_search_along_the_mean_of_their_losses(devices: int, every: int) -> None:
    runtime = stratagem.Runtime(
        strategy=DDPStrategy(start_method="fork", timeout_s=200),
        accelerator="cpu",
        devices=devices,
        check_replicas_every=every,
    )
    ours = runtime.launch(searched, every > 0, quiet=True)
    net, x, y = problem()
    optimizer = lbfgs(net)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    for mine, theirs in zip(ours, net.parameters()):
        torch.testing.assert_close(mine, theirs.detach(), atol=1e-7, rtol=0)
