"""Short runs: fast_dev_run, overfit_batches, limits, a profiler, max_time, a resumed fit."""

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def loader():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def trainer(name, **settings):
    return L.Trainer(
        accelerator="cpu", devices=1, log_every_n_steps=1, logger=CSVLogger("logs", name=name), **settings
    )


if __name__ == "__main__":
    L.seed_everything(18)
    quick = L.Trainer(accelerator="cpu", devices=1, fast_dev_run=True)
    quick.fit(Net(), loader(), loader())
    assert quick.global_step == 1

    L.seed_everything(18)
    few = trainer("few", max_epochs=2, overfit_batches=2, enable_checkpointing=False, profiler="simple")
    few.fit(Net(), loader(), loader())
    assert few.global_step == 4

    L.seed_everything(18)
    limited = trainer(
        "limited", max_steps=8, limit_train_batches=4, limit_val_batches=2, max_time={"minutes": 5}
    )
    limited.fit(Net(), loader(), loader())
    assert limited.global_step == 8
    limited.save_checkpoint("limited.ckpt")

    L.seed_everything(18)
    resumed = trainer(
        "resumed", max_epochs=3, limit_train_batches=4, inference_mode=False, deterministic=True
    )
    resumed.fit(Net(), loader(), loader(), ckpt_path="limited.ckpt")
    assert resumed.current_epoch == 3
