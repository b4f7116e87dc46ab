"""A module whose metric is one of its settings, for tests of what searches settings."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import stratagem


class Level(stratagem.Module):
    """Validates to `level`, as the mean over ranks that see different values.

    Args:
        level: the metric.
        kind: "raises" fails in the first step.
        step_s: how long a step takes.
    """

    def __init__(self, level: float, kind: str = "calm", step_s: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.level, self.kind, self.step_s = level, kind, step_s

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.kind == "raises":
            raise ValueError("this kind can't be trained")
        time.sleep(self.step_s)
        loss = self.layer(batch).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        rank, last = self.trainer.global_rank, self.trainer.world_size - 1
        self.log("val_loss", self.level + rank - last / 2)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.ones(8, 2), batch_size=2)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.ones(2, 2), batch_size=1)
