"""A small model for `stratagem diff`, a faulty form of it, and a loop that is run as a script."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem


class Net(stratagem.Module):
    """Two linear layers on rows of which no two are alike.

    Args:
        dropout: probability.
        lr: learning rate.
    """

    def __init__(self, dropout: float = 0.0, lr: float = 1e-2) -> None:
        super().__init__()
        self.lr = lr
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(16, 3)

    def forward(self, rows: Tensor) -> Tensor:
        values: Tensor = self.head(self.body(rows))
        return values

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rows, targets = batch
        return nn.functional.mse_loss(self(rows), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(3)
        rows, targets = (torch.randn(48, width, generator=generator) for width in (6, 3))
        return DataLoader(TensorDataset(rows, targets), batch_size=4, shuffle=True)


class WrongBias(Net):
    """Halves a gradient on rank 1, after it is reduced."""

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if dist.is_initialized() and dist.get_rank() == 1:
            assert self.head.bias.grad is not None
            self.head.bias.grad.mul_(0.5)


class NanOnOneRank(Net):
    """Has a layer whose output isn't finite on rank 1, in the third step."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(Overflow(self))


class Overflow(nn.Module):
    """Returns its input; on rank 1 of several, NaN in the third step of a net."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self._step = lambda: net.global_step + 1

    def forward(self, values: Tensor) -> Tensor:
        is_due = dist.is_initialized() and dist.get_rank() == 1 and self._step() == 3
        return values * float("nan") if is_due else values


def train(runtime: stratagem.Runtime) -> None:
    """Train by a loop without the Trainer."""
    torch.manual_seed(0)
    net = Net()
    module, optimizer = runtime.setup(net, lambda module: torch.optim.AdamW(module.parameters(), lr=net.lr))
    for rows, targets in runtime.dataloader(net.train_dataloader()):
        runtime.backward(nn.functional.mse_loss(module(rows), targets))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    stratagem.Runtime().launch(train)
