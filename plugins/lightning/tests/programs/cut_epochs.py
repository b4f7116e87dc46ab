"""Epochs that end early, a last window of fewer batches, and what hooks read of the metrics."""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, stop_at=None, skip_at=None):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.stop_at, self.skip_at, self.outputs = stop_at, skip_at, []

    def step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if (self.current_epoch, batch_idx) == self.skip_at else None

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.outputs.append(loss.item())
        self.log("epoch_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        if (self.current_epoch, batch_idx) == self.stop_at:
            self.trainer.should_stop = True
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch), sync_dist=True)

    def on_validation_epoch_end(self):
        self.log("val_loss_seen", self.trainer.callback_metrics["val_loss"], sync_dist=True)

    def on_train_epoch_end(self):
        self.log("epochs_end", float(self.current_epoch), sync_dist=True)
        self.outputs.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        by_metric = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return [optimizer], [by_epoch, {"scheduler": by_metric, "monitor": "epochs_end"}]


class Adversaries(L.LightningModule):
    """Steps two optimizers, of which one is stepped in every other batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = nn.Linear(4, 1), nn.Linear(4, 1)
        self.steps_seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        for number, optimizer in enumerate(self.optimizers()):
            if number == 0 or batch_idx % 2 == 0:
                with optimizer.toggle_model():
                    loss = nn.functional.mse_loss((self.first, self.second)[number](x), y)
                    optimizer.zero_grad()
                    self.manual_backward(loss)
                    optimizer.step()
                    self.log(f"loss_{number}", loss)
        self.steps_seen.append(self.global_step)

    def configure_optimizers(self):
        first = torch.optim.SGD(self.first.parameters(), lr=0.1)
        unstepped = torch.optim.lr_scheduler.StepLR(first, 1, 0.1)
        return [first, torch.optim.SGD(self.second.parameters(), lr=0.1)], [unstepped]


class Reader(Callback):
    """Reads what the module clears in its own hook, and logs by itself."""

    def on_train_epoch_end(self, trainer, pl_module):
        self.log("outputs", float(len(pl_module.outputs)), sync_dist=True)


def fit(name, module, **settings):
    x = torch.randn(28, 4, generator=torch.Generator().manual_seed(2))
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name=name),
        enable_checkpointing=False,
        callbacks=[Reader()] if isinstance(module, Net) else None,
        **settings,
    )
    trainer.fit(module, loader, loader if isinstance(module, Net) else None)
    shown = (
        trainer.current_epoch,
        trainer.global_step,
        trainer.should_stop,
        *trainer.callback_metrics.values(),
    )
    print("RESULT", *(float(value) for value in shown), flush=True)
    return trainer


if __name__ == "__main__":
    for name, module, settings in (
        ("steps", Net, {"max_steps": 9, "max_epochs": -1}),
        ("stop", lambda: Net(stop_at=(1, 2)), {"max_epochs": 3}),
        ("stop_between", lambda: Net(stop_at=(0, 2)), {"max_epochs": 3, "val_check_interval": 2}),
        ("skip", lambda: Net(skip_at=(0, 3)), {"max_epochs": 2}),
        ("window", Net, {"max_epochs": 2, "accumulate_grad_batches": 3}),
        ("adversaries", Adversaries, {"max_steps": 7, "max_epochs": -1}),
    ):
        L.seed_everything(31)
        fit(name, module(), **settings)
    L.seed_everything(31)
    module = Adversaries()
    trainer = fit("steps_seen", module, max_epochs=1)
    assert module.trainer is trainer
    print("RESULT", *trainer.callback_metrics["loss_0"].view(1).tolist(), flush=True)
