"""`WeightAveraging` and `EMAWeightAveraging`: train the weights as usual, evaluate and save their average."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import check_count
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from stratagem.errors import ConfigError
from stratagem_callbacks.averages import Averages, Update, read_saved, restore, snapshot

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

    from stratagem import CheckpointReader, Prepared


class WeightAveraging(Callback):
    """Average the weights after steps, as `torch.optim.swa_utils.AveragedModel` does.

    The averages are sharded like the parameters. Validations within a fit use them, the module has them when the fit
    ends, and checkpoints have them as the model's weights. Checkpoints also have the weights that training continues
    with. Override `should_update` to choose the steps or epochs after which to average.

    Args:
        device: must be None: the averages are on the parameters' devices.
        use_buffers: average floating-point buffers, too. False keeps the latest buffers.
        avg_fn: takes an average, the current value, and how many values were averaged before; returns the next
          average.
        multi_avg_fn: as `avg_fn`, with lists that it changes in place. Without either function, all steps weigh the
          same.

    Raises:
        ConfigError: a device or both functions are given.
    """

    needs = ("changes_between_steps",)

    is_restored_in_evaluations = False

    def __init__(
        self,
        device: Any = None,
        use_buffers: bool = True,
        *,
        avg_fn: Callable[..., torch.Tensor] | None = None,
        multi_avg_fn: Update | None = None,
    ) -> None:
        owner = type(self).__name__
        if device is not None:
            raise ConfigError(
                f"{owner} keeps the averages on the parameters' devices, in the same shards: leave device out"
            )
        if avg_fn is not None and multi_avg_fn is not None:
            raise ConfigError(f"{owner} got both avg_fn and multi_avg_fn: give one")
        self.use_buffers = use_buffers
        self._avg_fn, self._multi_avg_fn = avg_fn, multi_avg_fn
        self._averages: Averages | None = None
        self._current: dict[str, torch.Tensor] | None = None
        self._count, self._step = 0, 0

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether to average now. By default, after each step.

        Args:
            step_idx: the optimizer step that has just ended, from 0; None at the end of an epoch.
            epoch_idx: the epoch that has just ended, from 0; None after a step.
        """
        return step_idx is not None

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._current = None
        if stage == "fit" and self._averages is None:
            self._averages, self._count = Averages(trainer.prepared, self.use_buffers), 0
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > self._step:
            self._step = trainer.global_step
            if self.should_update(step_idx=self._step - 1):
                self._update(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if self.should_update(epoch_idx=trainer.current_epoch):
            self._update(trainer)

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._swap_in(trainer)

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._current is not None:
            restore(trainer.prepared, self._current)
            self._current = None

    def on_train_end(self, trainer: TrainerView, module: Module) -> None:
        self._swap_in(trainer)

    def teardown(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._averages = self._current = None

    def on_exception(self, trainer: TrainerView, module: Module, error: BaseException) -> None:
        self._averages = self._current = None

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._averages.count if self._averages is not None else self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count = state["count"]

    def save_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        if self._averages is None or not self._averages.count:
            return
        for key, average in self._averages.tensors.items():
            tensors[self.tensor_prefix + key] = tensors[key] if self._current is None else self._current[key]
            tensors[key] = average

    def load_tensors(self, prepared: Prepared, reader: CheckpointReader) -> None:
        current = read_saved(prepared, reader, self.tensor_prefix)
        # A checkpoint without these tensors is from a run without this callback, or before the first average.
        self._count = self._count if current is not None else 0
        self._averages = Averages(prepared, self.use_buffers, count=self._count)
        if current is not None:
            restore(prepared, current)

    def _update(self, trainer: TrainerView) -> None:
        assert self._averages is not None
        with torch.no_grad():
            self._averages.add(trainer.prepared, self._multi())

    def _multi(self) -> Update:
        average = self._avg_fn
        if average is None:
            return self._multi_avg_fn or get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]  # torch has no types for it

        def each(averages: Any, current: Any, count: int) -> None:
            for kept, value in zip(averages, current):
                kept.copy_(average(kept, value, count))

        return each

    def _swap_in(self, trainer: TrainerView) -> None:
        if self._averages is not None and self._averages.count and self._current is None:
            self._current = snapshot(trainer.prepared)
            restore(trainer.prepared, self._averages.tensors)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_averages": None, "_current": None}


class EMAWeightAveraging(WeightAveraging):
    """Average the weights exponentially: average = decay · average + (1 − decay) · current value.

    Args:
        device: as of `WeightAveraging`.
        use_buffers: as of `WeightAveraging`.
        decay: weight of the old average, from 0 to 1.
        update_every_n_steps: average after each n-th optimizer step.
        update_starting_at_step: the first step that may be averaged, from 0.
        update_starting_at_epoch: the first epoch that may be averaged, from 0.

    Raises:
        ConfigError: a value isn't allowed.
    """

    def __init__(
        self,
        device: Any = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
    ) -> None:
        if not 0.0 <= decay <= 1.0:
            raise ConfigError(f"EMAWeightAveraging got decay={decay!r}; give a number from 0 to 1")
        check_count("EMAWeightAveraging", "update_every_n_steps", update_every_n_steps, 1)
        super().__init__(device, use_buffers)
        self.decay = decay
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step or 0
        self.update_starting_at_epoch = update_starting_at_epoch or 0
        self._epoch = 0

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return (
            step_idx is not None
            and step_idx >= self.update_starting_at_step
            and self._epoch >= self.update_starting_at_epoch
            and step_idx % self.update_every_n_steps == 0
        )

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._epoch = trainer.current_epoch
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)

    def _multi(self) -> Update:
        update: Update = get_ema_multi_avg_fn(self.decay)  # type: ignore[no-untyped-call]  # torch has no types for it
        return update
