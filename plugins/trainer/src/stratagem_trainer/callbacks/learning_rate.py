"""`LearningRateMonitor`: log the learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class _Group(NamedTuple):
    """A parameter group, the name of its values, and how often they are logged."""

    name: str
    values: dict[str, Any]
    interval: str


class LearningRateMonitor(Callback):
    """Log the learning rate of every parameter group before the optimizer uses it.

    Rates are named after the optimizer's class, such as "lr-Adam". Those of several groups are "lr-Adam/pg1" and
    "lr-Adam/pg2", or have the group's "name" after the slash. A second Adam is "lr-Adam-1". A scheduler's "name"
    replaces "lr-Adam".

    Args:
        logging_interval: "step" logs with each batch. "epoch" logs with the first batch of each epoch, for the
            epoch's row. None logs as often as the optimizer's scheduler is stepped, or with each batch if there is
            none.
        log_momentum: also log the momentum, or the first beta, such as "lr-Adam-momentum".
        log_weight_decay: also log the weight decay, such as "lr-Adam-weight_decay".

    Raises:
        ConfigError: the interval is unknown.
    """

    def __init__(
        self,
        logging_interval: Literal["step", "epoch"] | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ) -> None:
        if logging_interval not in ("step", "epoch", None):
            raise ConfigError(
                f"LearningRateMonitor got logging_interval={logging_interval!r}; allowed are "
                '"step", "epoch" and None'
            )
        self.logging_interval = logging_interval
        self.log_momentum, self.log_weight_decay = log_momentum, log_weight_decay
        self.lrs: dict[str, list[float]] = {}
        """Name → the learning rates that this process has logged, one for each row of metrics."""
        self._groups: list[_Group] = []
        self._is_new_epoch = False

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        # A resumed epoch doesn't call on_train_epoch_start.
        self._is_new_epoch = False
        self._groups = self._named_groups(trainer) if stage == "fit" else []
        if stage == "fit":
            self.lrs = {name: [] for name, _, _ in self._groups}

    def on_train_epoch_start(self, trainer: TrainerView, module: Module) -> None:
        self._is_new_epoch = True
        # Look up the groups again: a strategy or a loaded checkpoint may have replaced them.
        self._groups = self._named_groups(trainer)

    def on_train_batch_start(self, trainer: TrainerView, module: Module, batch: Any, batch_idx: int) -> None:
        for name, group, interval in self._groups:
            each = interval == "step"
            if each or self._is_new_epoch:
                # A step's value is written only every `log_every_n_steps` steps, an epoch's always.
                for suffix, value in self._values(group):
                    module.log(name + suffix, value, on_step=each, on_epoch=not each)
                every = trainer.settings.steps_per_row
                if not each or (every and (trainer.global_step + 1) % every == 0):
                    self.lrs.setdefault(name, []).append(group["lr"])
        self._is_new_epoch = False

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        # No reference to the optimizers may outlive the run's process group.
        self._groups = []

    def on_exception(self, trainer: TrainerView, module: Module, error: BaseException) -> None:
        self._groups = []

    def _values(self, group: dict[str, Any]) -> list[tuple[str, float]]:
        values = [("", group["lr"])]
        if self.log_momentum:
            values.append(
                ("-momentum", group["betas"][0] if "betas" in group else group.get("momentum", 0.0))
            )
        if self.log_weight_decay:
            values.append(("-weight_decay", group.get("weight_decay", 0.0)))
        return values

    def _named_groups(self, trainer: TrainerView) -> list[_Group]:
        named: list[_Group] = []
        taken: dict[str, int] = {}
        for index, optimizer in enumerate(trainer.prepared.optimizers):
            schedules = [each for each in trainer.state.schedules if each.optimizer == index]
            kind = type(optimizer).__name__
            number = taken[kind] = taken.get(kind, -1) + 1
            own_name = next((name for each in schedules if (name := getattr(each, "name", None))), None)
            name = own_name or f"lr-{kind}" + (f"-{number}" if number else "")
            slow = bool(schedules) and all(each.interval == "epoch" for each in schedules)
            interval = self.logging_interval or ("epoch" if slow else "step")
            groups = optimizer.param_groups
            for place, group in enumerate(groups, start=1):
                part = group.get("name") or (f"pg{place}" if len(groups) > 1 else "")
                named.append(_Group(f"{name}/{part}" if part else name, group, interval))
        return named
