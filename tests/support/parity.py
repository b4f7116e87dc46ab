"""A module, its data, and a loop in plain PyTorch that must give the same numbers."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

SEED = 3


def images_and_labels() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(digits.target)


def make_net() -> nn.Sequential:
    """The same parameters each time, whatever was drawn before."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
        )


class Net(stratagem.Module):
    """A small convolutional net; `steps` asks for its loss in a method other than forward."""

    def __init__(self, batch_size: int = 16, scheduled: bool = False) -> None:
        super().__init__()
        self.net = make_net()
        self.batch_size = batch_size
        self.scheduled = scheduled
        self.losses: list[float] = []

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        scores = self.net(images)
        self.log("val_loss", F.cross_entropy(scores, labels))
        self.log("val_acc", (scores.argmax(1) == labels).float().mean())
        self.log("seen", float(len(labels)), reduce_fx="sum")

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if not self.scheduled:
            return optimizer
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def loader(self, start: int, stop: int, shuffle: bool = False) -> DataLoader[Any]:
        images, labels = images_and_labels()
        data = TensorDataset(images[start:stop], labels[start:stop])
        return DataLoader(data, self.batch_size, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader(0, 1408, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader(1408, 1797)

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


def plain_training(
    steps: int, global_batch: int, seed: int, *, clip: float | None = None, scheduled: bool = False
) -> tuple[dict[str, Tensor], list[float]]:
    """Train the net for `steps` on one device with nothing but torch.

    Returns:
        The parameters, and the loss of each step.
    """
    images, labels = images_and_labels()
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5) if scheduled else None
    order = list(stratagem.ShardedSampler(1408, shuffle=True, seed=seed))
    losses = []
    for step in range(steps):
        chosen = order[step * global_batch : (step + 1) * global_batch]
        loss = F.cross_entropy(net(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return net.state_dict(), losses
