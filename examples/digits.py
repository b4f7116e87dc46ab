"""Recognise handwritten digits: 1,797 images of 8 by 8 pixels that come with scikit-learn.

stratagem fit examples/digits.py:Digits --max-epochs 10
stratagem fit examples/digits.py:Digits --max-epochs 10 --strategy ddp --accelerator cpu --devices 2
stratagem fit examples/digits.py:Digits --max-epochs 10 --set model.hidden=128 --set model.lr=0.002
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import stratagem


class Digits(stratagem.Module):
    """Two convolutions and a linear layer; reaches 0.97 on held-out images within ten epochs.

    Args:
        hidden: channels of the second convolution.
        lr: learning rate of the first epoch; each further epoch has 0.85 of the one before.
        batch_size: images per step and process.
    """

    def __init__(self, hidden: int = 64, lr: float = 5e-3, batch_size: int = 32) -> None:
        super().__init__()
        self.lr = lr
        self.batch_size = batch_size
        self.net = nn.Sequential(
            nn.Conv2d(1, hidden // 2, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden // 2, hidden, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(hidden * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, _ = batch
        return self(images).argmax(dim=1)

    def _evaluate(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        images, labels = batch
        scores = self(images)
        accuracy = (scores.argmax(dim=1) == labels).float().mean()
        # sync_dist: each process sees its share of the images, and the mean is over all of them.
        self.log(f"{stage}_loss", F.cross_entropy(scores, labels), sync_dist=True)
        self.log(f"{stage}_acc", accuracy, prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.85)]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(digits()[0], self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(digits()[1], self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(digits()[2], self.batch_size)

    predict_dataloader = test_dataloader


@cache
def digits() -> list[torch.utils.data.Subset]:
    """1,200 images to train with, 300 to validate, 297 to test: the same ones every time."""
    from sklearn.datasets import load_digits  # takes a second, so only where data is needed

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    data = TensorDataset(images, torch.tensor(labels))
    return random_split(data, [1200, 300, 297], torch.Generator().manual_seed(0))
