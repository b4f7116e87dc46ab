"""A first program: one layer, one loader, SGD."""

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1, generator=generator))


if __name__ == "__main__":
    L.seed_everything(7)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="regression"),
        enable_checkpointing=False,
    )
    trainer.fit(Regression(), DataLoader(data(), batch_size=8))
    assert trainer.callback_metrics["train_loss"] < 2
    assert trainer.global_step == 24 * 1 // trainer.world_size
    assert trainer.current_epoch == 3
