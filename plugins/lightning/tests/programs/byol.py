"""Self-supervised learning: a momentum network that a hook updates, two views made on the device."""

import copy

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BYOL(L.LightningModule):
    def __init__(self, momentum=0.9):
        super().__init__()
        self.save_hyperparameters()
        self.online = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.predictor = nn.Linear(4, 4)
        self.momentum = copy.deepcopy(self.online)
        self.momentum.requires_grad_(False)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        (x,) = batch
        return x + 0.1, x * 0.9

    def loss(self, a, b):
        p = nn.functional.normalize(self.predictor(self.online(a)), dim=1)
        with torch.no_grad():
            z = nn.functional.normalize(self.momentum(b), dim=1)
        return 2 - 2 * (p * z).sum(1).mean()

    def training_step(self, batch, batch_idx):
        a, b = batch
        loss = self.loss(a, b) + self.loss(b, a)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for mine, theirs in zip(self.online.parameters(), self.momentum.parameters(), strict=True):
                theirs.lerp_(mine, 1 - self.hparams.momentum)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        if self.current_epoch > 0:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)]


if __name__ == "__main__":
    L.seed_everything(10)
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(2))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        log_every_n_steps=1,
        gradient_clip_val=0.1,
        gradient_clip_algorithm="norm",
        logger=CSVLogger("logs", name="byol"),
        enable_checkpointing=False,
    )
    trainer.fit(BYOL(), DataLoader(TensorDataset(x), batch_size=16))
