"""A module that is interrupted: dropout, Adam, accumulation and validation on the way, and a note of each step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem


class Interrupted(stratagem.Module):
    """Notes in `folder` its processes' ids once it trains, and each micro-batch that it is trained on."""

    def __init__(self, folder: str, count: int = 960, pause_s: float = 0.01, workers: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        self.folder, self.count, self.pause_s, self.workers = Path(folder), count, pause_s, workers

    def on_train_start(self) -> None:
        (self.folder / f"pid.{self.global_rank}").write_text(str(os.getpid()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        time.sleep(self.pause_s)
        with (self.folder / f"steps.{self.global_rank}").open("a") as file:
            file.write(f"{self.current_epoch} {batch_idx}\n")
        return self._loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(self.pause_s)
        self.log("val_loss", self._loss(batch))

    def _loss(self, batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.randn(self.count, 8, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=True, num_workers=self.workers)

    def val_dataloader(self) -> DataLoader[Any]:
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(2))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, num_workers=self.workers)
