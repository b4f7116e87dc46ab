"""A training of our own whose checkpoints are converted, and the same in a plain loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_convert.formats.converting import Writing, read_weights, write_weights
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

BATCH, BATCHES, EPOCHS = 4, 5, 3
OPTIMIZERS = ("adamw", "sgd", "adafactor")


def network() -> nn.Module:
    """Return one with buffers, and two weights that are tied."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)
        )
        net[3].weight = net[0].weight
        return net


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(BATCH * BATCHES, 6, generator=generator)
    return TensorDataset(x, (x @ torch.randn(6, 4, generator=generator)).argmax(1))


def configured(net: nn.Module, kind: str) -> tuple[torch.optim.Optimizer, Any, str]:
    """Return an optimizer with two groups, not in the module's order, its schedule, and when that steps.

    With the kind "in_order" it has one group, in the module's order.
    """
    matrices = [each for each in net.parameters() if each.ndim > 1]
    others = [each for each in net.parameters() if each.ndim == 1]
    groups = [{"params": others, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.1}]
    optimizer: torch.optim.Optimizer
    if kind == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=1e-2, amsgrad=True)
    elif kind == "in_order":
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    elif kind == "sgd":
        optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1), "epoch"
    else:
        optimizer = torch.optim.Adafactor(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=EPOCHS * BATCHES, cycle_momentum=kind != "adafactor"
    )
    return optimizer, schedule, "step"


class Net(stratagem.Module):
    def __init__(self, kind: str = "adamw") -> None:
        super().__init__()
        self.net, self.kind = network(), kind

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return as_lightning(configured(self.net, self.kind))


def as_lightning(parts: tuple[torch.optim.Optimizer, Any, str]) -> dict[str, Any]:
    optimizer, schedule, interval = parts
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}


@dataclass
class Losses(stratagem.Callback):
    """Keeps each step's loss, and saves after some steps; below 0 they stand for the epoch's end after them."""

    saves: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses[trainer.global_step - 1] = float(outputs["loss"])
        if trainer.global_step in self.saves:
            trainer.save_checkpoint(self.saves[trainer.global_step])

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if -trainer.global_step in self.saves:
            trainer.save_checkpoint(self.saves[-trainer.global_step])

    @property
    def state_key(self) -> str:
        return "losses"


def fit(folder: Path, kind: str, begin: str | None = None, **saves: int) -> dict[int, float]:
    """Train here; return the loss of each step."""
    kept = Losses({step: str(folder / name) for name, step in saves.items()})
    trainer = stratagem.Trainer(
        strategy="single", accelerator="cpu", max_epochs=EPOCHS, callbacks=[kept], logger=False,
        enable_progress_bar=False, enable_checkpointing=False, run_dir=folder / "logs",
    )  # fmt: skip
    trainer.fit(Net(kind), DataLoader(data(), BATCH), ckpt_path=begin)
    return kept.losses


def convert(source: Path, target: Path, name: str) -> str:
    write_weights(read_weights(str(source)), str(target), name, Writing(training=True))
    return str(target)


def plain_losses(
    net: nn.Module, parts: tuple[Any, Any, str], first: int, end: int = EPOCHS * BATCHES
) -> dict[int, float]:
    """Go on by a plain loop from a step."""
    optimizer, schedule, interval = parts
    found = {}
    for step in range(first, end):
        start = step % BATCHES * BATCH
        x, y = data()[start : start + BATCH]
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if interval == "step" or (step + 1) % BATCHES == 0:
            schedule.step()
        found[step] = loss.item()
    return found


def same(found: dict[int, float], expected: dict[int, float], first: int) -> None:
    assert sorted(found) == list(range(first, EPOCHS * BATCHES))
    for step, loss in found.items():
        assert loss == pytest.approx(expected[step], abs=1e-6), step


def lightning_losses(
    path: str | None, kind: str, folder: Path, order: list[int], callbacks: list[Any] | None = None
) -> tuple[dict[int, float], Any]:
    """Go on in Lightning from a file, whose epoch has the batches of `order`; or begin there."""
    import lightning.pytorch as pl

    class Same(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            found[self.global_step] = loss.item()
            return loss

        def configure_optimizers(self) -> Any:
            return as_lightning(configured(self.net, kind))

        def train_dataloader(self) -> Any:
            # Lightning begins an epoch's data again, wherever in the epoch it goes on.
            batches = order if self.trainer.global_step == first else list(range(BATCHES))
            samples = [n for batch in batches for n in range(batch * BATCH, (batch + 1) * BATCH)]
            return DataLoader(torch.utils.data.Subset(data(), samples), BATCH)

    found: dict[int, float] = {}
    first = torch.load(path, weights_only=True)["global_step"] if path else 0
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_checkpointing=bool(callbacks),
        enable_model_summary=False,
        default_root_dir=folder,
        reload_dataloaders_every_n_epochs=1,
    )
    trainer.fit(Same(), ckpt_path=path)
    return found, trainer
