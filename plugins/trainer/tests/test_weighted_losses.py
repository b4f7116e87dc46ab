"""Losses with weights in a fit: what is trained and logged on ranks with unequal numbers of labels."""

import pytest
import torch
from stratagem_trainer import Module, Trainer
from torch import nn
from torch.utils.data import DataLoader

from stratagem import LossSum
from stratagem.errors import LoggingError, WorkerError

X = torch.tensor([1.0, 2.0, 4.0, 8.0])
COUNTS = torch.tensor([3.0, 0.0, 1.0, 6.0])
MEAN = float((X * COUNTS).sum() / COUNTS.sum())


class Weighted(Module):
    def __init__(self, **log):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.how = log

    def summed(self, batch):
        x, counts = batch
        return LossSum((x * self.weight * counts).sum(), counts.sum())

    def training_step(self, batch, batch_idx):
        summed = self.summed(batch)
        self.log("train_loss", summed, on_step=False, on_epoch=True, sync_dist=True, **self.how)
        return summed

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.summed(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.125)

    def train_dataloader(self):
        return DataLoader(list(zip(X, COUNTS)), 1)

    val_dataloader = train_dataloader


def fit(module, tmp_path, **settings):
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        run_dir=str(tmp_path),
        enable_progress_bar=False,
        enable_checkpointing=False,
        **settings,
    )
    trainer.fit(module)
    return trainer


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_steps_and_logged_means_go_by_weights(strategy, devices, tmp_path):
    module = Weighted()
    accumulate = len(X) // devices
    settings = {"strategy": strategy, "devices": devices, "accumulate_grad_batches": accumulate}
    trainer = fit(module, tmp_path, **settings)
    after = 1 - 0.125 * MEAN
    assert float(module.weight.detach()) == pytest.approx(after, rel=1e-6)
    assert trainer.callback_metrics["train_loss"] == pytest.approx(MEAN, rel=1e-6)
    assert trainer.callback_metrics["val_loss"] == pytest.approx(MEAN * after, rel=1e-6)


def test_a_sum_is_logged_as_a_mean_alone(tmp_path):
    with pytest.raises((LoggingError, WorkerError), match="leave out reduce_fx"):
        fit(Weighted(reduce_fx="sum"), tmp_path, strategy="single", devices=1)
