"""`LearningRateMonitor`: logs the learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from stratagem_trainer.module import Module
    from stratagem_trainer.view import TrainerView


class LearningRateMonitor(Callback):
    """Log the learning rate of every parameter group, as the optimizer is about to use it.

    They are named "lr"; with several groups "lr/0", "lr/1"; with several optimizers "lr/0/0", where the
    first number is the optimizer's.

    Args:
        interval: "step" logs with each batch, "epoch" with the first one of each epoch, for the epoch's row.

    Raises:
        ConfigError: another interval.
    """

    def __init__(self, interval: Literal["step", "epoch"] = "step") -> None:
        if interval not in ("step", "epoch"):
            raise ConfigError(
                f'LearningRateMonitor got interval={interval!r}; allowed are "step" and "epoch"'
            )
        self.interval = interval
        self._groups: list[tuple[str, dict[str, Any]]] = []
        self._is_new_epoch = False

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        # A resumed epoch has no start.
        self._is_new_epoch = False
        self._groups = _named_groups(trainer)

    def on_train_epoch_start(self, trainer: TrainerView, module: Module) -> None:
        self._is_new_epoch = True
        # Looked up again, since a strategy or a loaded checkpoint may have replaced the groups.
        self._groups = _named_groups(trainer)

    def on_train_batch_start(self, trainer: TrainerView, module: Module, batch: Any, batch_idx: int) -> None:
        if self._is_new_epoch or self.interval == "step":
            self._is_new_epoch = False
            for name, group in self._groups:
                # A step's value is only written every `log_every_n_steps`; an epoch's always is.
                each = self.interval == "step"
                module.log(name, group["lr"], on_step=each, on_epoch=not each)

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        # Nothing of the optimizers may outlive the run's process group.
        self._groups = []

    def on_exception(self, trainer: TrainerView, module: Module, error: BaseException) -> None:
        self._groups = []


def _named_groups(trainer: TrainerView) -> list[tuple[str, dict[str, Any]]]:
    optimizers = trainer.prepared.optimizers
    named = []
    for index, optimizer in enumerate(optimizers):
        prefix = "lr" if len(optimizers) == 1 else f"lr/{index}"
        groups = optimizer.param_groups
        for number, group in enumerate(groups):
            named.append((prefix if len(groups) == 1 else f"{prefix}/{number}", group))
    return named
