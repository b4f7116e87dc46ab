"""Bugs of programs on Lightning's Trainer and Fabric."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import lightning
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset

from tests.corpus.bug import ROWS, Bug, Case, Net, batches, make_net

MICRO_BATCHES = 2
LIMIT = 0.05


def losses_of_fabric_not_averaged(case: Case) -> None:
    """`fabric.backward` gets the loss of each micro-batch, which nothing divides by their number."""
    fabric = Fabric(
        accelerator="cpu", devices=case.world_size, strategy="ddp" if case.world_size > 1 else "auto"
    )
    fabric.launch()
    net = make_net()
    model, optimizer = fabric.setup(net, AdamW(net.parameters()))
    with case.record(net, None):
        for rows, targets in batches():
            for part, part_targets in zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
                loss = mse_loss(model(case.own(part)), case.own(part_targets))
                fabric.backward(loss if case.is_wrong else loss / MICRO_BATCHES)
            optimizer.step()
            optimizer.zero_grad()


def rows_of_all_ranks(case: Case) -> None:
    """`fabric.setup_dataloaders` isn't called, so that all ranks read the same rows."""
    fabric = Fabric(
        accelerator="cpu", devices=case.world_size, strategy="ddp" if case.world_size > 1 else "auto"
    )
    fabric.launch()
    model, optimizer = fabric.setup(net := make_net(), AdamW(net.parameters()))
    rows, targets = (torch.cat(each) for each in zip(*batches()))
    loader = DataLoader(TensorDataset(rows, targets), ROWS // case.world_size)
    if not case.is_wrong:
        loader = fabric.setup_dataloaders(loader)
    with case.record(net, None):
        for own_rows, own_targets in loader:
            fabric.backward(mse_loss(model(own_rows), own_targets))
            optimizer.step()
            optimizer.zero_grad()


class Trained(lightning.LightningModule):
    """A module that clips at the right place, or too early."""

    def __init__(self, net: Net, *, is_wrong: bool) -> None:
        super().__init__()
        self.net, self.is_wrong = net, is_wrong

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rows, targets = batch
        loss = mse_loss(self.net(rows), targets)
        if self.is_wrong:
            nn.utils.clip_grad_norm_(self.parameters(), LIMIT)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.is_wrong:
            nn.utils.clip_grad_norm_(self.parameters(), LIMIT)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return SGD(self.parameters(), lr=0.1)


def clipped_before_backward(case: Case) -> None:
    """Gradients are clipped in `training_step`, before backward computes them."""
    net = make_net()
    if case.is_reference:
        optimizer = SGD(net.parameters(), lr=0.1)
        with case.record(net, None):
            for rows, targets in batches():
                mse_loss(net(rows), targets).backward()
                nn.utils.clip_grad_norm_(net.parameters(), LIMIT)
                optimizer.step()
                optimizer.zero_grad()
        return
    rows, targets = (torch.cat(each) for each in zip(*batches()))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet: dict[str, Any] = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar"), False
        )
        trainer = lightning.Trainer(
            max_steps=3, accelerator="cpu", devices=1, default_root_dir=folder, **quiet
        )
        with case.record(net, None):
            trainer.fit(Trained(net, is_wrong=case.is_wrong), DataLoader(TensorDataset(rows, targets), ROWS))


BUGS = (
    Bug(
        losses_of_fabric_not_averaged,
        "accumulation",
        "Lightning Fabric",
        "https://github.com/Lightning-AI/lit-llama/pull/357",
        "parameter gradient *",
    ),
    Bug(
        rows_of_all_ranks,
        "data",
        "Lightning Fabric",
        "https://github.com/Lightning-AI/lit-llama/pull/213",
        "input *",
    ),
    Bug(
        clipped_before_backward,
        "clipping",
        "Lightning",
        "https://github.com/simchowitzlabpublic/nano-world-model/pull/22",
        "parameter gradient *",
        world_size=1,
    ),
)
"""In the order of docs/corpus.md."""
