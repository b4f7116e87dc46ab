"""A program of LightningCLI: subcommands, typed arguments, a data module."""

import sys

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self, width: int = 8, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Data(LightningDataModule):
    def __init__(self, size: int = 32, batch_size: int = 8):
        super().__init__()
        self.size, self.batch_size = size, batch_size

    def setup(self, stage: str):
        x = torch.randn(self.size, 5, generator=torch.Generator().manual_seed(8))
        self.dataset = TensorDataset(x, x.prod(1, keepdim=True))

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=self.batch_size)

    def val_dataloader(self):
        return DataLoader(self.dataset, batch_size=self.batch_size)


ARGUMENTS = [
    *("fit", "--seed_everything", "13", "--model.width", "6", "--model.lr=0.1", "--data.size", "48"),
    *("--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", "--trainer.devices=1"),
    *("--trainer.log_every_n_steps", "1", "--trainer.enable_checkpointing", "false"),
    *("--trainer.logger", "lightning.pytorch.loggers.CSVLogger"),
    *("--trainer.logger.save_dir", "logs", "--trainer.logger.name", "command_line"),
]

if __name__ == "__main__":
    cli = LightningCLI(Net, Data, args=ARGUMENTS if len(sys.argv) < 2 else None)
    assert cli.model.hparams.width == 6
    assert cli.trainer.max_epochs == 2
