"""What four launchers train, beside the same in one process by a plain loop; the test says how far they go."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

SAMPLES, BATCH, GLOBAL, EPOCHS, SEED = 108, 2, 24, 4, 3
STEPS_PER_EPOCH = -(-SAMPLES // GLOBAL)
"""The last one has 12 samples: on 4 ranks a batch of 2 and one of 1 each."""
STEPS = EPOCHS * STEPS_PER_EPOCH
LIMIT = "limit"
"""File: the optimizer step at which ranks wait, in mid-training, until a larger number is in it."""


def net() -> nn.Module:
    """Return the same network in each process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(6, 13), nn.Tanh(), nn.Linear(13, 4))


def data() -> TensorDataset:
    """Return inputs, classes and the samples' numbers."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(x, (x @ torch.randn(6, 4, generator=generator)).argmax(1), torch.arange(SAMPLES))


def schedule(optimizer: torch.optim.Optimizer) -> Any:
    """Return a learning rate that is another one in each step."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)


@dataclass
class Step:
    """What an optimizer step was made of."""

    numbers: list[int] = field(default_factory=list)
    loss: float = 0.0
    """Of all its samples, added up."""
    rate: float = 0.0


class Net(stratagem.Module):
    """Writes what each micro-batch was, and waits where the file `LIMIT` says."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.net, self.folder = net(), Path(folder)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y, numbers = batch
        loss = F.cross_entropy(self.net(x), y)
        entry = {
            "attempt": self.trainer.runtime.session.run.environment.attempt,
            "rank": self.trainer.global_rank,
            "size": self.trainer.world_size,
            "step": self.trainer.global_step,
            "epoch": self.trainer.current_epoch,
            "numbers": numbers.tolist(),
            "loss": loss.item() * len(numbers),
            "rate": self.trainer.prepared.optimizers[0].param_groups[0]["lr"],
        }
        with (self.folder / f"seen.{os.getpid()}").open("a") as file:
            file.write(json.dumps(entry) + "\n")
        with stop_requests(self.trainer.world_size == 1) as reported:
            while not reported and self.trainer.global_step >= int((self.folder / LIMIT).read_text()):
                time.sleep(0.05)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule(optimizer), "interval": "step"},
        }

    def train_dataloader(self) -> Any:
        return DataLoader(data(), BATCH, shuffle=True)


@contextmanager
def stop_requests(watched: bool) -> Iterator[list[int]]:
    """Yield a list that isn't empty once SIGTERM has come, which the trainer's own handler gets, too.

    Args:
        watched: whether anything comes into it. A rank among several goes on waiting: it would train on until all of
            them agree to stop.
    """
    reported: list[int] = []
    before: Any = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        reported.append(number)
        before(number, frame)

    if watched and callable(before):
        signal.signal(signal.SIGTERM, handle)
    try:
        yield reported
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before)


def in_one_process() -> tuple[list[Step], dict[str, Tensor]]:
    """Train by a plain loop; return the steps, and the weights at the end."""
    model, samples = net(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rates = schedule(optimizer)
    steps, sampler = [], stratagem.ShardedSampler(SAMPLES, seed=SEED)
    for epoch in range(EPOCHS):
        sampler.start(epoch)
        order = list(sampler)
        for start in range(0, SAMPLES, GLOBAL):
            x, y, numbers = samples[order[start : start + GLOBAL]]
            loss = F.cross_entropy(model(x), y)
            steps.append(Step(numbers.tolist(), loss.item() * len(x), optimizer.param_groups[0]["lr"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
    return steps, dict(model.state_dict())
