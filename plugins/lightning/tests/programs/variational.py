"""A variational autoencoder with two validation loaders."""

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(L.LightningModule):
    def __init__(self, latent=2):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Linear(10, 16)
        self.mean, self.log_variance = nn.Linear(16, latent), nn.Linear(16, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 16), nn.ReLU(), nn.Linear(16, 10))

    def step(self, batch):
        (x,) = batch
        hidden = torch.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.linspace(-1, 1, mean.numel(), device=mean.device).view_as(mean)
        z = mean + noise * torch.exp(0.5 * log_variance)
        reconstruction = nn.functional.mse_loss(self.decoder(z), x)
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
        return {"loss": reconstruction + 0.1 * kl, "reconstruction": reconstruction, "kl": kl}

    def training_step(self, batch, batch_idx):
        losses = self.step(batch)
        self.log_dict({f"train_{k}": v for k, v in losses.items()})
        return losses["loss"]

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        losses = self.step(batch)
        self.log("val", losses["loss"], sync_dist=True)
        self.log(
            "everywhere", losses["kl"], add_dataloader_idx=False, sync_dist=True
        ) if dataloader_idx else None

    def configure_optimizers(self):
        return [torch.optim.Adam(self.parameters(), lr=1e-2)]


if __name__ == "__main__":
    L.seed_everything(8)
    x = torch.randn(64, 10, generator=torch.Generator().manual_seed(2))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="variational"),
        enable_checkpointing=False,
    )
    val = [DataLoader(TensorDataset(x[:16]), batch_size=8), DataLoader(TensorDataset(x[16:40]), batch_size=8)]
    model = VAE()
    trainer.fit(model, DataLoader(TensorDataset(x), batch_size=8), val)
    assert {"val/dataloader_idx_0", "val/dataloader_idx_1", "everywhere"} <= set(trainer.callback_metrics)
    first, second = trainer.validate(model, dataloaders=val)
    print("RESULT", first["val/dataloader_idx_0"], second["val/dataloader_idx_1"])
