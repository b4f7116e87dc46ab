"""What the tests have for a Gaudi processor: the CPU, under the accelerator's name."""

from __future__ import annotations

import os
from typing import Any

import torch
from habana_frameworks.torch.core import MARKS
from stratagem_hpu import HPUAccelerator
from torch import nn

import stratagem


class StandInHPUAccelerator(HPUAccelerator):
    """Asks for the names of a Gaudi processor, and computes on the CPU."""

    autocast_type = "cpu"
    backend = "gloo"

    def device_count(self) -> int:
        return 2

    def device(self, index: int) -> torch.device:
        return torch.device("cpu")


class Regression(stratagem.Module):
    """Prints at the end what has trained it: the class, the marks, the variable that chose the processor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.05)

    def on_train_end(self) -> None:
        trainer = self.trainer
        marked = f"rank {trainer.global_rank}: {type(trainer.prepared).__name__}, {len(MARKS)} marks"
        print(f"{marked}, ID={os.environ.get('ID')}", flush=True)


class Manual(Regression):
    """Runs its own backwards and steps."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()
