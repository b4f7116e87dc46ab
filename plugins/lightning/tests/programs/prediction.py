"""Predictions written by a callback, returned by predict, of a module loaded from a checkpoint."""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Writer(BasePredictionWriter):
    def __init__(self, folder):
        super().__init__(write_interval="batch_and_epoch")
        self.folder = folder

    def write_on_batch_end(
        self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx
    ):
        os.makedirs(self.folder, exist_ok=True)
        torch.save(
            (batch_indices, prediction), os.path.join(self.folder, f"{trainer.global_rank}_{batch_idx}.pt")
        )

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        torch.save(predictions, os.path.join(self.folder, f"all_{trainer.global_rank}.pt"))


class Net(L.LightningModule):
    def __init__(self, sizes=(6, 4, 2)):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.l1_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["note"] = {"rows": 32}

    def on_load_checkpoint(self, checkpoint):
        self.rows = checkpoint["note"]["rows"]


if __name__ == "__main__":
    L.seed_everything(6)
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(x, x[:, :2] ** 2), batch_size=4)
    settings = {"accelerator": "cpu", "devices": 1, "log_every_n_steps": 1}
    trainer = L.Trainer(max_epochs=1, logger=CSVLogger("logs", name="prediction"), **settings)
    trainer.fit(Net(), loader)
    trainer.save_checkpoint("net.ckpt")
    model = Net.load_from_checkpoint("net.ckpt")
    assert model.rows == 32
    assert tuple(model.hparams.sizes) == (6, 4, 2)
    trainer = L.Trainer(logger=False, callbacks=[Writer("written")], **settings)
    predictions = trainer.predict(model, loader)
    total = torch.cat(predictions)
    assert total.shape == (32, 2)
    print("RESULT", float(total.sum()))
