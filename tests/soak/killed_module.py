"""What tests/soak/kills.py trains: a rank that a plan names kills itself, at a random instant of what it is doing.

SIGKILL runs no handler: a timer's thread within the rank knows best what the rank is doing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

PHASES = ("training", "collective", "saving", "evaluation")


class Plan:
    """The kills that are still to come: one per attempt, in the order of the file.

    Args:
        folder: has plan.json, a list of {rank, phase, after_steps, delay_s}, and gets a file for each that was done.
        rank: this one.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        planned = json.loads((folder / "plan.json").read_text())
        done = len(list(folder.glob("killed.*")))
        self._next = planned[done] if done < len(planned) else None
        self._path, self._rank = folder / f"killed.{done}", rank
        self._steps = 0

    def step(self) -> None:
        """A step has begun."""
        self._steps += 1

    def at(self, phase: str) -> None:
        """This rank begins to do that: kill it soon, where the plan says so."""
        wanted = self._next
        if wanted is None or (wanted["rank"], wanted["phase"]) != (self._rank, phase):
            return
        if self._steps <= wanted["after_steps"]:
            return
        self._next = None
        timer = threading.Timer(wanted["delay_s"], self._kill, [phase])
        timer.daemon = True
        timer.start()

    def _kill(self, phase: str) -> None:
        self._path.write_text(f"{phase} {time.time()}")
        os.kill(os.getpid(), signal.SIGKILL)


class Killed(stratagem.Module):
    """Dropout and AdamW, so that random numbers and moments have to come back, too."""

    def __init__(self, folder: str, samples: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 33), nn.Tanh(), nn.Dropout(0.1), nn.Linear(33, 5))
        self.folder, self.samples = Path(folder), samples
        self.plan: Plan | None = None

    def on_fit_start(self) -> None:
        self.plan = Plan(self.folder, self.trainer.global_rank)

    def _at(self, phase: str) -> None:
        if self.plan is not None:
            self.plan.at(phase)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.plan is not None:
            self.plan.step()
        self._at("training")
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def on_before_backward(self, loss: Tensor) -> None:
        self._at("collective")  # gradients are reduced in the backward

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._at("saving")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._at("evaluation")
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.8), "interval": "step"}
        ]

    def _data(self, count: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 8, generator=generator)
        return TensorDataset(x, (x[:, :5] * x[:, 3:8]).argmax(1))

    def train_dataloader(self) -> Any:
        return DataLoader(self._data(self.samples, 1), 4, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self._data(24, 2), 4)


def plan(kills: int, ranks: int, seed: int, phases: tuple[str, ...] = PHASES) -> list[dict[str, Any]]:
    """Return a random plan, with each phase equally often."""
    draw = random.Random(seed)
    chosen = [phases[index % len(phases)] for index in range(kills)]
    draw.shuffle(chosen)
    return [
        {
            "rank": draw.randrange(ranks),
            "phase": phase,
            "after_steps": draw.randrange(8),
            "delay_s": draw.uniform(0, 0.02),
        }
        for phase in chosen
    ]
