"""Random numbers: equal in runs with the same seed, and different on each rank."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stratagem_trainer.callbacks.base import Callback
from torch import nn

from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.subject import SEED, StrategySubject
from stratagem_testing.trained import train

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer


@dataclass(frozen=True)
class Noisy(Recipe):
    """Has dropout, so that losses depend on random numbers."""

    steps: int | None = 6

    def net(self) -> nn.Module:
        net = super().net()
        assert isinstance(net, nn.Sequential)
        return nn.Sequential(net[0], net[1], nn.Dropout(0.5), net[2])


@dataclass
class _Draws(Callback):
    """Draws from each global generator in each step."""

    drawn: list[tuple[float, float, float]] = field(default_factory=list)

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        self.drawn.append((float(torch.rand(())), random.random(), float(np.random.random())))


@check
def check_seed(subject: StrategySubject) -> None:
    """Two runs with the same seed are bitwise equal, dropout included. Another seed has other results."""
    for first, second, other in subject.run(_three_runs):
        expect(first.losses == second.losses, "two runs with the same seed have different losses")
        same = all(torch.equal(value, second.weights[name]) for name, value in first.weights.items())
        expect(same, "two runs with the same seed have different weights")
        expect(first.losses != other.losses, "runs with different seeds have the same losses")


def _three_runs(subject: StrategySubject) -> list[Trained]:
    return [train(subject, Noisy(), seed=seed) for seed in (SEED, SEED, SEED + 1)]


@check(world_sizes=(2, 4))
def check_ranks_draw_apart(subject: StrategySubject) -> None:
    """In training, torch, random and numpy draw different numbers on ranks with different data, and only there."""
    if subject.processes() == 1:
        raise NotApplicable("it has one process")
    drawn = subject.run(_drawn)
    for step, numbers in enumerate(zip(*drawn)):
        for which, name in enumerate(("torch", "random", "numpy")):
            ours = [number[which] for number in numbers]
            found, parts = len(set(ours)), subject.shares()
            expect(
                found == parts,
                f"in step {step}, {name} draws {'the same number' if found < parts else 'different numbers'} on "
                f"ranks that read {'different' if found < parts else 'the same'} data: {found} numbers for "
                f"{parts} shares",
            )


def _drawn(subject: StrategySubject) -> list[tuple[float, float, float]]:
    draws = _Draws()
    train(subject, Recipe(steps=3), [draws])
    return draws.drawn
