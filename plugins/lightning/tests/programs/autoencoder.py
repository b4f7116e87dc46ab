"""Training, validation and test with metrics per step and per epoch; the best checkpoint is tested."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class AutoEncoder(pl.LightningModule):
    def __init__(self, width=12, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 3))
        self.decoder = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 16))

    def forward(self, x):
        return self.encoder(x)

    def shared_step(self, batch):
        (x,) = batch
        x = x.view(x.size(0), -1)
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, batch_idx):
        loss = self.shared_step(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.shared_step(batch), prog_bar=True, sync_dist=True)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.shared_step(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def loaders():
    x = torch.randn(96, 4, 4, generator=torch.Generator().manual_seed(1))
    parts = random_split(TensorDataset(x), [64, 16, 16], generator=torch.Generator().manual_seed(2))
    return [DataLoader(part, batch_size=8) for part in parts]


def main():
    pl.seed_everything(11, workers=True)
    train, val, test = loaders()
    checkpoint = ModelCheckpoint(
        dirpath="saved", monitor="val_loss", mode="min", save_top_k=2, filename="{epoch}-{val_loss:.3f}"
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="autoencoder"),
        callbacks=[checkpoint, EarlyStopping("val_loss", patience=3)],
    )
    trainer.fit(AutoEncoder(), train, val)
    assert set(trainer.callback_metrics) >= {"train_loss", "train_loss_step", "train_loss_epoch", "val_loss"}
    assert checkpoint.best_model_path
    assert len(checkpoint.best_k_models) == 2
    (tested,) = trainer.test(dataloaders=test, ckpt_path="best")
    print("RESULT", tested["test_loss"])
    again = AutoEncoder.load_from_checkpoint(checkpoint.best_model_path)
    assert again.hparams.width == 12
    (validated,) = trainer.validate(again, val)
    print("RESULT", validated["val_loss"])


if __name__ == "__main__":
    main()
