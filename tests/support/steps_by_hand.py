"""A Trainer's module that runs backwards and steps itself, in ways that the strategy doesn't see."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from stratagem import Module, Trainer


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return (output - torch.tensor([1.0, -2.0], dtype=output.dtype)).square().mean()


class ByHand(Module):
    """Runs backwards and steps itself, in ways that the strategy doesn't see.

    Args:
        way: "raw", "closure", "two" or "assigned".
        batch_size: of one rank.
    """

    def __init__(self, way: str, batch_size: int) -> None:
        super().__init__()
        self.automatic_optimization, self.batch_size = False, batch_size
        self.way, self.net = way, net()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        (x,) = batch
        if self.way == "closure":
            optimizer.step(lambda: self._evaluate(optimizer, x))
            return
        optimizer.zero_grad()
        if self.way == "assigned":
            loss, parameters = loss_of(self.net(x)), list(self.net.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter.grad = gradient
        else:
            self._evaluate(optimizer, x)
            if self.way == "two":
                loss_of(self.net(-x)).backward()
        optimizer.step()

    def _evaluate(self, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        if self.way == "closure":
            optimizer.zero_grad()
        loss = loss_of(self.net(x))
        loss.backward()
        return loss

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.05, momentum=0.9)

    def train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        data = (
            torch.randn(24, 4, generator=generator, dtype=torch.float64) * torch.arange(1, 25)[:, None] / 12
        )
        return DataLoader(TensorDataset(data), batch_size=self.batch_size)


def fitted(way: str, strategy: str, devices: int) -> dict[str, torch.Tensor]:
    module = ByHand(way, 8 // devices)
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        max_epochs=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module)
    return {name: value.detach().clone() for name, value in module.named_parameters()}
