"""A DataModule over a real data set, hyperparameters, a metric object, a scheduler per epoch."""

from argparse import Namespace

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Digits(L.LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.save_hyperparameters()
        self.prepared = False

    def prepare_data(self):
        load_digits()

    def setup(self, stage=None):
        images, labels = load_digits(return_X_y=True)
        x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
        if stage in (None, "fit"):
            self.train, self.val = TensorDataset(x[:512], y[:512]), TensorDataset(x[512:640], y[512:640])
        if stage in (None, "test"):
            self.test = TensorDataset(x[640:768], y[640:768])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=self.hparams.batch_size)


class Classifier(L.LightningModule):
    def __init__(self, hidden: int = 32, optimizer: dict | None = None):
        super().__init__()
        self.save_hyperparameters(Namespace(hidden=hidden, **(optimizer or {"lr": 0.2})))
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))
        self.loss = nn.CrossEntropyLoss()
        self.val_accuracy = MulticlassAccuracy(num_classes=10, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss(self(x), y)
        self.log_dict({"train_loss": loss, "twice": 2 * loss})
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        self.val_accuracy(out, y)
        self.log("val_loss", self.loss(out, y), sync_dist=True)
        self.log("val_accuracy", self.val_accuracy, on_step=False, on_epoch=True, prog_bar=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.test_accuracy.update(self(x), y)
        self.log("test_accuracy", self.test_accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
        return [optimizer], [scheduler]


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        log_every_n_steps=1,
        num_sanity_val_steps=2,
        logger=CSVLogger("logs", name="digits"),
        callbacks=[LearningRateMonitor(logging_interval="epoch"), ModelCheckpoint("saved", save_last=True)],
    )
    datamodule = Digits(batch_size=32)
    trainer.fit(Classifier(), datamodule=datamodule)
    assert trainer.datamodule is datamodule
    (tested,) = trainer.test(datamodule=datamodule)
    assert tested["test_accuracy"] > 0.2
    print("RESULT", tested["test_accuracy"])
    (last,) = trainer.test(Classifier(), datamodule=datamodule, ckpt_path="last")
    assert last == tested
