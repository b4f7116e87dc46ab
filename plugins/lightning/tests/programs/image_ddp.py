"""A small convolutional network with synchronized batch normalization and a sampler that sets its epoch."""

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, classes=3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, classes),
        )
        self.example_input_array = torch.zeros(2, 1, 8, 8)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y, label_smoothing=0.1)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
        rest = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, rest], milestones=[4])
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


if __name__ == "__main__":
    L.seed_everything(19)
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    dataset = TensorDataset(x, torch.arange(64) % 3)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        sync_batchnorm=True,
        log_every_n_steps=1,
        benchmark=False,
        logger=CSVLogger("logs", name="image"),
        enable_checkpointing=False,
    )
    trainer.fit(Net(), DataLoader(dataset, batch_size=8), DataLoader(dataset, batch_size=16))
    assert trainer.is_global_zero
    assert 0 <= float(trainer.callback_metrics["accuracy"]) <= 1
