"""A small net with a backbone, its data, and plain torch loops over them."""

from __future__ import annotations

import torch
from stratagem_trainer.callbacks import BasePredictionWriter
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

SAMPLES = 32


def data() -> TensorDataset:
    x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


class Net(stratagem.Module):
    def __init__(self, batch_size: int = 8, lr: float = 0.05, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        middle = nn.BatchNorm1d(8) if norm else nn.Tanh()
        self.backbone = nn.Sequential(nn.Linear(4, 8), middle)
        self.head = nn.Linear(8, 1)
        self.example_input_array = torch.zeros(2, 4)
        self.batch_size, self.lr = batch_size, lr
        self.fails_at = -1
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))

    def loss(self, batch) -> torch.Tensor:
        return ((self(batch[0]) - batch[1]) ** 2).mean()

    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == self.fails_at:
            raise RuntimeError("pulled the plug")
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.SGD(trained, lr=self.lr, momentum=0.9)

    def train_dataloader(self):
        return DataLoader(data(), batch_size=self.batch_size)

    val_dataloader = predict_dataloader = train_dataloader


class Writer(BasePredictionWriter):
    """Writes what it is given to a file for each rank."""

    def __init__(self, folder) -> None:
        super().__init__("batch_and_epoch")
        self.folder, self.batches = folder, []

    def write_on_batch_end(
        self, trainer, module, prediction, batch_indices, batch, batch_idx, dataloader_idx
    ):
        self.batches.append((batch_indices, prediction.clone()))

    def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
        assert [each for each, _ in self.batches] == batch_indices
        torch.save(
            {"indices": batch_indices, "predictions": [each.clone() for each in predictions]},
            f"{self.folder}/{trainer.global_rank}.pt",
        )


def trainer(strategy, folder, *callbacks, devices=1, **how):
    settings = {
        "max_epochs": 3,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "seed": 1,
        "logger": False,
        "run_dir": str(folder),
        **how,
    }
    return stratagem.Trainer(
        accelerator="cpu", strategy=strategy, devices=devices, callbacks=list(callbacks), **settings
    )


def plain(net: Net, epochs: int, after_step=None, before_epoch=None, after_epoch=None, optimizer=None):
    """A plain loop of the same steps."""
    optimizer = net.configure_optimizers() if optimizer is None else optimizer
    net.train()
    for epoch in range(epochs):
        if before_epoch is not None:
            before_epoch(epoch, optimizer)
        for batch in DataLoader(data(), batch_size=net.batch_size):
            optimizer.zero_grad()
            net.loss(batch).backward()
            optimizer.step()
            if after_step is not None:
                after_step(net)
        if after_epoch is not None:
            after_epoch(epoch, optimizer)
    return net


def values(module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_equal(ours, theirs, atol=1e-6):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=atol, rtol=0, msg=name)
