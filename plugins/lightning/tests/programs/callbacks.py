"""Callbacks of one's own and of the library: counters, averaged weights, accumulation by epoch, a timer."""

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    LambdaCallback,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Counter(Callback):
    def __init__(self):
        self.counts = {"epochs": 0, "batches": 0}
        self.stages = []

    def setup(self, trainer, pl_module, stage):
        self.stages.append(stage)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        assert outputs["loss"].ndim == 0
        self.counts["batches"] += 1

    def on_train_epoch_end(self, trainer, pl_module):
        self.counts["epochs"] += 1
        pl_module.log("counted", float(self.counts["batches"]), sync_dist=True)

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            assert "val_loss" in trainer.callback_metrics

    def state_dict(self):
        return dict(self.counts)

    def load_state_dict(self, state_dict):
        self.counts.update(state_dict)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1))

    def step(self, batch):
        x, y = batch
        return nn.functional.smooth_l1_loss(self.net(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def configure_callbacks(self):
        return [Counter()]


if __name__ == "__main__":
    L.seed_everything(14)
    x = torch.randn(64, 7, generator=torch.Generator().manual_seed(2))
    loader = DataLoader(TensorDataset(x, x.abs().sum(1, keepdim=True)), batch_size=8)
    seen = []
    timer = Timer(duration="00:00:10:00")
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="callbacks"),
        callbacks=[
            GradientAccumulationScheduler(scheduling={1: 2}),
            StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=2, annealing_epochs=1),
            LambdaCallback(on_train_epoch_start=lambda trainer, module: seen.append(trainer.current_epoch)),
            timer,
        ],
        enable_checkpointing=False,
    )
    trainer.fit(Net(), loader, loader)
    assert timer.time_elapsed("train") > 0
