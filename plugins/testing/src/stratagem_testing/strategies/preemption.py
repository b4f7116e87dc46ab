"""A run that is stopped by a signal, and resumed."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from stratagem_launch import Preempted
from stratagem_trainer.callbacks.base import Callback
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.same import expect_identical
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import RecipeModule, train

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer


class _Noisy(Dataset[Any]):
    """Samples with noise that a loader's worker draws from two generators."""

    def __init__(self, samples: Dataset[Any], count: int) -> None:
        self._samples, self._count = samples, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self._samples[index]
        return x + torch.rand(6) + random.random(), y


@dataclass(frozen=True)
class _Drawing(Recipe):
    epochs: int | None = 2
    steps: int | None = None

    def dataset(self) -> Dataset[Any]:
        return _Noisy(super().dataset(), self.samples)


class _InWorker(RecipeModule):
    """Reads its samples in a worker process of the loader."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.recipe.dataset(), self.batch_size, shuffle=True, num_workers=1)


class _SignalAt(Callback):
    """Sends a signal to the last rank's process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step and trainer.global_rank == trainer.world_size - 1:
            signal.raise_signal(signal.SIGUSR1)


STEP, STEPS = 2, 20
"""The step after which the signal is sent, and the number of steps of the whole run."""


@check(world_sizes=(2,))
def check_preemption(subject: StrategySubject) -> None:
    """A signal to one rank stops all after the same step. The resumed run is bitwise equal, also workers' noise."""
    ranks = subject.run(_stopped)
    steps = [stopped_at for _, stopped_at, _ in ranks]
    expect(
        None not in steps,
        f"after SIGUSR1 in step {STEP}, the run continues to its end: something else handles that signal",
    )
    expect(len(set(steps)) == 1, f"after SIGUSR1, ranks save after steps {steps}")
    for rank, (whole, _, resumed) in enumerate(ranks):
        assert resumed is not None
        who = f"rank {rank}, stopped after step {steps[0]} and continued"
        expect_identical(resumed, whole, who, "the run that was never interrupted")


def _stopped(subject: StrategySubject) -> tuple[Trained, int | None, Trained | None]:
    # The parent of this process may ignore the signal, and children inherit that.
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    whole = train(subject, _Drawing(), module_class=_InWorker)
    try:
        train(subject, _Drawing(), [_SignalAt(STEP)], module_class=_InWorker)
    except Preempted as preempted:
        at, path = preempted.step, preempted.path
    else:
        return whole, None, None
    finally:
        signal.signal(signal.SIGUSR1, before)
    return whole, at, train(subject, _Drawing(), ckpt_path=path, module_class=_InWorker)
