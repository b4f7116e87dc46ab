"""A learning rate and a batch size that are searched for, then a fit with them."""

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, learning_rate=1e-4, batch_size=2):
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate, self.batch_size = learning_rate, batch_size
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def train_dataloader(self):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=self.batch_size)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


if __name__ == "__main__":
    L.seed_everything(17)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=10,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="tuning"),
        enable_checkpointing=False,
    )
    model = Net()
    tuner = Tuner(trainer)
    tuner.scale_batch_size(model, mode="power", max_trials=3, steps_per_trial=1)
    assert model.batch_size in (8, 16)
    model.batch_size = 16
    found = tuner.lr_find(model, min_lr=1e-5, max_lr=1.0, num_training=30)
    assert len(found.results["lr"]) >= 5
    assert model.learning_rate == found.suggestion()
    model.learning_rate = 0.05
    trainer.fit(model)
    assert trainer.global_step == 40 // trainer.world_size
