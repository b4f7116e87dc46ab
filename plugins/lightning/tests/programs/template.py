"""What a hydra template does: all is instantiated from a config, metrics are objects, helpers run on rank 0."""

from importlib import import_module

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MaxMetric, MeanMetric

CONFIG = {
    "seed": 12345,
    "model": {"_target_": "__main__.LitModule", "lr": 0.1, "size": 8},
    "callbacks": [
        {
            "_target_": "lightning.pytorch.callbacks.ModelCheckpoint",
            "dirpath": "saved",
            "monitor": "val/acc",
            "mode": "max",
            "save_last": True,
            "auto_insert_metric_name": False,
            "filename": "epoch_{epoch:03d}",
        },
        {
            "_target_": "lightning.pytorch.callbacks.EarlyStopping",
            "monitor": "val/acc",
            "patience": 100,
            "mode": "max",
        },
        {"_target_": "lightning.pytorch.callbacks.ModelSummary", "max_depth": -1},
    ],
    "logger": [{"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "logs", "name": "template"}],
    "trainer": {
        "min_epochs": 1,
        "max_epochs": 3,
        "accelerator": "cpu",
        "devices": 1,
        "check_val_every_n_epoch": 1,
        "deterministic": False,
        "log_every_n_steps": 1,
        "default_root_dir": "root",
    },
}


def instantiate(config, **more):
    config = dict(config)
    module, _, name = config.pop("_target_").rpartition(".")
    kind = globals()[name] if module == "__main__" else getattr(import_module(module), name)
    return kind(**config, **more)


class LitModule(L.LightningModule):
    def __init__(self, lr: float, size: int):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, 2))
        self.criterion = nn.CrossEntropyLoss()
        self.train_loss, self.val_loss = MeanMetric(), MeanMetric()
        self.val_acc, self.val_acc_best = MeanMetric(), MaxMetric()

    def on_train_start(self):
        self.val_loss.reset()
        self.val_acc_best.reset()

    def model_step(self, batch):
        x, y = batch
        logits = self.net(x)
        return self.criterion(logits, y), logits.argmax(1), y

    def training_step(self, batch, batch_idx):
        loss, _, _ = self.model_step(batch)
        self.train_loss(loss)
        self.log("train_loss", loss, on_step=True, on_epoch=False)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, predictions, targets = self.model_step(batch)
        self.val_loss(loss)
        self.val_acc((predictions == targets).float())
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_epoch_end(self):
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(params=self.trainer.model.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": scheduler,
                "monitor": "val/loss",
                "interval": "epoch",
                "frequency": 1,
            },
        }


@rank_zero_only
def log_hyperparameters(config, model, trainer):
    counts = {"model/params/total": sum(p.numel() for p in model.parameters())}
    for logger in trainer.loggers:
        logger.log_hyperparams({"seed": config["seed"], **counts})


def main():
    L.seed_everything(CONFIG["seed"], workers=True)
    model = instantiate(CONFIG["model"])
    callbacks: list[Callback] = [instantiate(each) for each in CONFIG["callbacks"]]
    loggers: list[Logger] = [instantiate(each) for each in CONFIG["logger"]]
    trainer = L.Trainer(**CONFIG["trainer"], callbacks=callbacks, logger=loggers)
    log_hyperparameters(CONFIG, model, trainer)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(x, (x.sum(1) > 0).long())
    trainer.fit(model, DataLoader(dataset, batch_size=8), DataLoader(dataset, batch_size=16))
    assert isinstance(trainer.loggers[0], CSVLogger)
    checkpoint = trainer.checkpoint_callback
    assert isinstance(checkpoint, ModelCheckpoint)
    rank_zero_info(f"Best: {checkpoint.best_model_path}")
    assert trainer.callback_metrics["val/acc_best"] >= trainer.callback_metrics["val/acc"]
    print("RESULT", float(trainer.callback_metrics["val/acc_best"]))


if __name__ == "__main__":
    main()
