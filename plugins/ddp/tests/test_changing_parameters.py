"""Parameters that are frozen and unfrozen while training, held against a plain loop over the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from stratagem_sharded import DDPShardedStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS, SAMPLES = 9, 8


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(STEPS * 2 * SAMPLES, 6, generator=generator)
    return TensorDataset(x, torch.sin(x[:, :2] * 2))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def first_then_all(layers: nn.Sequential, batch: int) -> None:
    """The head alone, then all, then all but the head."""
    for index in (0, 2, 4):
        layers[index].requires_grad_({0: index == 4, 1: True, 2: index != 4}[batch // 4 % 3])


def others_in_turn(layers: nn.Sequential, batch: int) -> None:
    """Changes in the middle of an optimizer step of two micro-batches."""
    layers[0].requires_grad_(batch % 5 != 1)
    layers[2].requires_grad_(batch % 3 != 0)


class Changing(stratagem.Module):
    def __init__(self, change: Callable[[nn.Sequential, int], None], accumulate: int, manual: bool) -> None:
        super().__init__()
        self.net, self.change = net(), change
        self.accumulate, self.automatic_optimization = accumulate, not manual
        change(self.net, 0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = (part.unflatten(0, (STEPS, -1))[batch_idx] for part in data().tensors)
        size = len(x) // self.trainer.runtime.world_size
        own = slice(self.global_rank * size, (self.global_rank + 1) * size)
        loss = F.mse_loss(self.net(x[own]), y[own])
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        return optimizer_of(self.net)


def optimizer_of(layers: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(layers.parameters(), lr=0.3, momentum=0.5, weight_decay=0.1)


class Change(stratagem.Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        module.change(module.net, batch_idx)


def plainly(change: Callable[[nn.Sequential, int], None], accumulate: int) -> dict[str, Tensor]:
    layers = net()
    optimizer = optimizer_of(layers)
    for index, (x, y) in enumerate(DataLoader(data(), SAMPLES * 2)):
        change(layers, index)
        (F.mse_loss(layers(x), y) / accumulate).backward()
        if (index + 1) % accumulate == 0 or (index + 1) == STEPS:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach() for name, value in layers.state_dict().items()}


def trained(
    strategy: Any, change: Any, accumulate: int = 1, manual: bool = False, callback: Any = None
) -> dict[str, Tensor]:
    module = Changing(change, accumulate, manual)
    stratagem.Trainer(
        strategy=strategy,
        devices=2,
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        callbacks=[callback or Change()],
    ).fit(module, DataLoader(range(STEPS * 2), 1))
    return {name: value.detach() for name, value in module.net.state_dict().items()}


STRATEGIES: dict[str, Any] = {
    "ddp": lambda: DDPStrategy(start_method="fork", timeout_s=200),
    "unused": lambda: DDPStrategy(start_method="fork", timeout_s=200, find_unused_parameters=True),
    "views": lambda: DDPStrategy(start_method="fork", timeout_s=200, gradient_as_bucket_view=True),
    "sharded": lambda: DDPShardedStrategy(start_method="fork", timeout_s=200),
    "sharded views": lambda: DDPShardedStrategy(
        start_method="fork", timeout_s=200, parameters_as_bucket_view=True
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_gradients_are_reduced_whatever_requires_them(name: str) -> None:
    for change in (first_then_all, others_in_turn):
        ours, theirs = trained(STRATEGIES[name](), change), plainly(change, 1)
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], atol=1e-6, rtol=0, msg=f"{change.__name__} {key}")
