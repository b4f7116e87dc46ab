"""Checkpoints by name in a folder of their own, read back by path, and what callbacks know afterwards."""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, width=4):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(width, 1)

    def step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self.net, norm_type=2))

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.step(batch), sync_dist=True)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.step(batch), on_step=True, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def loader(count=16):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(2))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


if __name__ == "__main__":
    L.seed_everything(32)
    best = ModelCheckpoint(
        dirpath="best",
        monitor="val/loss",
        save_top_k=2,
        filename="{epoch}-loss={val/loss:.1f}",
        auto_insert_metric_name=False,
    )
    newest = ModelCheckpoint(
        dirpath="newest", monitor="step", mode="max", filename="newest", every_n_epochs=2
    )
    stopping = EarlyStopping("val/loss", patience=1, min_delta=0.9)
    rates = LearningRateMonitor()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=5,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="checkpoints"),
        callbacks=[best, newest, stopping, rates],
        limit_val_batches=3,
        gradient_clip_val=5.0,
    )
    assert (trainer.limit_val_batches, trainer.gradient_clip_val, trainer.val_check_interval) == (3, 5.0, 1.0)
    trainer.fit(Net(), loader(), loader())
    scores = (best.best_model_score.item(), best.current_score.item(), best.kth_value.item())
    print("RESULT", *scores, stopping.best_score.item(), stopping.stopped_epoch, stopping.wait_count)
    if trainer.world_size == 1:
        print("RESULT", *rates.lrs["lr-SGD"])
    print("RESULT", *sorted(value.item() for value in best.best_k_models.values()), flush=True)
    assert os.path.dirname(best.best_model_path) == os.path.abspath("best")
    assert best.kth_best_model_path in best.best_k_models
    assert best.best_model_path.endswith(".ckpt")
    assert os.path.exists(best.best_model_path)
    assert os.path.exists("newest/newest.ckpt")
    again = Net.load_from_checkpoint("newest/newest.ckpt")
    print("RESULT", *again.net.weight.flatten().tolist(), again.hparams.width, flush=True)
    (found,) = trainer.test(again, loader(), ckpt_path="newest/newest.ckpt", verbose=False)
    assert list(found) == ["test_loss_epoch"], found
    print("RESULT", *found.values(), flush=True)
