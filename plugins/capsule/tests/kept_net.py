"""A model with dropout on data of which ranks get unequal parts, and faults at a step."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

ROWS, BATCH = 50, 4


class Net(stratagem.Module):
    """Two layers with dropout; Python's and NumPy's random numbers scale the inputs.

    Args:
        fault: "raise" raises on the last rank, "nan" makes the head's output NaN, "gradient" a gradient of it.
        at: the optimizer step of the fault, from 1.
        in_place: change the batch in `training_step`.
        width: of the hidden layer.
    """

    def __init__(self, fault: str = "none", at: int = 0, in_place: bool = False, width: int = 16) -> None:
        super().__init__()
        self.fault, self.at, self.in_place = fault, at, in_place
        self.body = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(width, 3)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rows, targets = batch
        if self.in_place:
            rows.mul_(0.5)
        rows = rows * (1 + 0.1 * random.random() + 0.1 * float(np.random.rand()))
        is_due = self.global_step + 1 == self.at
        is_last_rank = self.global_rank == self.trainer.world_size - 1
        if is_due and self.fault == "raise" and is_last_rank:
            raise ValueError(f"planted at batch {batch_idx}")
        if is_due and self.fault == "nan":
            rows = rows / 0.0
        return nn.functional.mse_loss(self.head(self.body(rows)), targets)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.global_step + 1 == self.at and self.fault == "gradient":
            assert self.head.bias.grad is not None
            self.head.bias.grad.mul_(float("nan"))

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        folder = os.environ.get("KEPT_NET_STATES")
        if folder is None:
            return
        Path(folder).mkdir(exist_ok=True)
        state = {name: whole(tensor).clone() for name, tensor in self.state_dict().items()}
        if self.global_rank == 0:
            torch.save(state, f"{folder}/{self.global_step}.pt")

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(3)
        rows, targets = (torch.randn(ROWS, width, generator=generator) for width in (6, 3))
        # The larger, the more a rank's mean differs from another's.
        return DataLoader(
            TensorDataset(rows * torch.arange(ROWS)[:, None] / 25, targets), BATCH, shuffle=True
        )


def whole(tensor: Tensor) -> Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)().detach()
