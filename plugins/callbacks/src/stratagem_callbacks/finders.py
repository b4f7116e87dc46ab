"""`LearningRateFinder` and `BatchSizeFinder`: a `Tuner` before each fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from stratagem_trainer.callbacks.base import Callback


class LearningRateFinder(Callback):
    """Find a learning rate before a fit, and train with it. `Tuner.lr_find` describes the arguments.

    Args:
        min_lr: the first rate.
        max_lr: the last rate.
        num_training_steps: number of steps.
        mode: "exponential" or "linear".
        early_stop_threshold: stop when the loss is this many times the smallest loss; None never stops early.
        update_attr: set the module's attribute, which configure_optimizers then uses.
        attr_name: the attribute; "lr" or "learning_rate" when empty.
    """

    is_left_out_of_fast_dev_run = True

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        num_training_steps: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> None:
        self._how: Mapping[str, Any] = {
            "min_lr": min_lr,
            "max_lr": max_lr,
            "num_training": num_training_steps,
            "mode": mode,
            "early_stop_threshold": early_stop_threshold,
            "update_attr": update_attr,
            "attr_name": attr_name,
        }
        self.optimal_lr: Any = None
        """The `SweepResult`, in the launching process."""

    def before_launch(self, trainer: Any, module: Any, dataloader: Any, stage: str) -> None:
        if stage == "fit":
            from stratagem_callbacks.tuner import Tuner

            self.optimal_lr = Tuner(trainer).lr_find(module, dataloader, **self._how)


class BatchSizeFinder(Callback):
    """Before a fit, find the largest batch size that fits into memory; `Tuner.scale_batch_size` says how.

    Args:
        mode: "power" or "binsearch".
        steps_per_trial: optimizer steps of each try.
        init_val: the first batch size.
        max_trials: number of tries, at most.
        batch_arg_name: the module's attribute.
    """

    is_left_out_of_fast_dev_run = True

    def __init__(
        self,
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
    ) -> None:
        self._how: Mapping[str, Any] = {
            "mode": mode,
            "steps_per_trial": steps_per_trial,
            "init_val": init_val,
            "max_trials": max_trials,
            "batch_arg_name": batch_arg_name,
        }
        self.optimal_batch_size: int | None = None
        """The batch size that was found, in the launching process."""

    def before_launch(self, trainer: Any, module: Any, dataloader: Any, stage: str) -> None:
        if stage == "fit":
            from stratagem_callbacks.tuner import Tuner

            self.optimal_batch_size = Tuner(trainer).scale_batch_size(module, dataloader, **self._how)
