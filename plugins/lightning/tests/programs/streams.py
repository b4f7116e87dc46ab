"""Streams of unknown length, validated every so many batches, precisions on a CPU, written predictions."""

import lightning as L
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(2))


class Stream(IterableDataset):
    def __iter__(self):
        worker = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        count = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        yield from ((x, x.sum().view(1)) for x in X[worker::count])


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

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def val_dataloader(self):
        return []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Writer(BasePredictionWriter):
    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        assert len(batch_indices) == 1
        assert len(batch_indices[0]) == len(predictions)
        if trainer.world_size == 1:
            print("RESULT", *(index for batch in batch_indices[0] for index in batch), flush=True)


def trainer(name, **settings):
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name=name),
        enable_checkpointing=False,
        **settings,
    )


if __name__ == "__main__":
    L.seed_everything(33)
    loader = DataLoader(Stream(), batch_size=4)
    over_epochs = trainer("stream", max_epochs=3, val_check_interval=5, check_val_every_n_epoch=None)
    over_epochs.fit(Net(), loader, loader)

    L.seed_everything(33)
    module = Net()
    half = trainer("half", max_epochs=1, precision="16-mixed")
    half.fit(module, DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=4))

    order = DataLoader(TensorDataset(X), batch_size=4)
    writing = trainer("writing", callbacks=[Writer("epoch")])
    assert writing.predict(module, order, return_predictions=False) is None

    fabric = Fabric(accelerator="cpu", devices="1", precision="bf16-mixed")
    fabric.launch()
    prepared = fabric.setup(nn.Linear(4, 1))
    assert prepared(X).dtype is torch.float32
