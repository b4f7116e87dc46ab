"""`GradientAccumulationScheduler`: change the number of micro-batches per optimizer step at some epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import check_count

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class GradientAccumulationScheduler(Callback):
    """Change `accumulate_grad_batches` at the start of epochs.

    Args:
        scheduling: epoch, from 0 → micro-batches per step from this epoch on. Before the first one, it is 1.

    """

    needs = ("changes_between_steps",)

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        if not isinstance(scheduling, Mapping) or not scheduling:
            raise ConfigError(
                f"GradientAccumulationScheduler got scheduling={scheduling!r}; pass a dict such as {{0: 8, 4: 1}}"
            )
        for epoch, batches in scheduling.items():
            check_count("GradientAccumulationScheduler", "an epoch of scheduling", epoch, 0)
            check_count("GradientAccumulationScheduler", f"scheduling[{epoch}]", batches, 1)
        self.scheduling = dict(sorted(scheduling.items()))

    def on_train_start(self, trainer: TrainerView, module: Module) -> None:
        if trainer.settings.accumulate_grad_batches != 1 or trainer.settings.global_batch_size is not None:
            raise ConfigError(
                "GradientAccumulationScheduler sets accumulate_grad_batches: don't pass it or global_batch_size to "
                "the Trainer, or put it into scheduling as epoch 0"
            )
        if not module.automatic_optimization:
            raise ConfigError(
                "GradientAccumulationScheduler is for automatic optimization: accumulate in training_step"
            )
        self._set(trainer)

    def on_train_epoch_start(self, trainer: TrainerView, module: Module) -> None:
        self._set(trainer)

    def factor(self, epoch: int) -> int:
        """Return the number of micro-batches per step in `epoch`."""
        return next((n for first, n in reversed(self.scheduling.items()) if first <= epoch), 1)

    def _set(self, trainer: TrainerView) -> None:
        trainer.state.micro_batches = self.factor(trainer.current_epoch)
