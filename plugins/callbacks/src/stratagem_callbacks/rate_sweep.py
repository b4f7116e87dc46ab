"""`RateSweep`: increases the learning rate from step to step, and records the losses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import check_count

from stratagem.errors import ConfigError, UsageError
from stratagem.sdk.loops import loss_of

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

_SMOOTHING = 0.98


@dataclass
class SweepResult:
    """The result of `Tuner.lr_find`."""

    results: dict[str, list[float]] = field(default_factory=lambda: {"lr": [], "loss": []})
    """"lr" and the smoothed "loss", by step."""

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """Return the rate at which the loss falls fastest; None if there are too few finite losses.

        Args:
            skip_begin: number of steps to leave out at the beginning.
            skip_end: number of steps to leave out at the end.
        """
        rates, losses = self.results["lr"], self.results["loss"]
        end = len(losses) - skip_end
        points = [(r, x) for r, x in list(zip(rates, losses))[skip_begin:end] if math.isfinite(x)]
        if len(points) < 2:
            return None
        gradients = torch.gradient(torch.tensor([loss for _, loss in points], dtype=torch.float64))[0]
        return points[int(gradients.argmin())][0]

    def plot(self, suggest: bool = False) -> Any:
        """Return a matplotlib figure of the losses by rate, on a logarithmic axis.

        Raises:
            UsageError: matplotlib isn't installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise UsageError('plot needs matplotlib: pip install "stratagem-callbacks[plot]"') from error
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        axes.plot(self.results["lr"], self.results["loss"])
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        found = self.suggestion() if suggest else None
        if found is not None:
            axes.axvline(found, color="#d9772b")
        return figure


class RateSweep(Callback):
    """Set all learning rates before each step, and end the fit when the loss has grown too much. Equal on all ranks.

    Args:
        min_lr: the first rate.
        max_lr: the last rate.
        num_training: number of steps.
        mode: "exponential" or "linear".
        early_stop_threshold: stop when the loss is this many times the smallest loss; None never stops early.

    Raises:
        ConfigError: a value isn't allowed.
    """

    is_restored_in_evaluations = False

    def __init__(
        self, min_lr: float, max_lr: float, num_training: int, mode: str, early_stop_threshold: float | None
    ) -> None:
        check_count("lr_find", "num_training", num_training, 2)
        if not 0 < min_lr < max_lr:
            raise ConfigError(
                f"lr_find got min_lr={min_lr!r} and max_lr={max_lr!r}; give 0 < min_lr < max_lr"
            )
        if mode not in ("exponential", "linear"):
            raise ConfigError(f"lr_find got mode={mode!r}; allowed are 'exponential' and 'linear'")
        self.min_lr, self.max_lr, self.num_training, self.mode = min_lr, max_lr, num_training, mode
        self.early_stop_threshold = early_stop_threshold
        self._rates: list[float] = []
        self._losses: list[float] = []
        self._average = 0.0
        self._window: list[torch.Tensor] = []

    def result(self) -> SweepResult:
        """The rates and losses so far."""
        return SweepResult({"lr": list(self._rates), "loss": list(self._losses)})

    def rate(self, step: int) -> float:
        """Return the rate of a step; steps count from 0."""
        part = step / (self.num_training - 1)
        if self.mode == "linear":
            return self.min_lr + part * (self.max_lr - self.min_lr)
        return float(self.min_lr * (self.max_lr / self.min_lr) ** part)

    def on_train_batch_start(self, trainer: TrainerView, module: Module, batch: Any, batch_idx: int) -> None:
        rate = self.rate(min(trainer.global_step, self.num_training - 1))
        for optimizer in trainer.prepared.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = loss_of(outputs)
        if loss is not None:
            self._window.append(loss.detach().float())
        if trainer.global_step == len(self._rates):
            return  # the optimizer hasn't stepped: more micro-batches follow
        ranks = trainer.collectives.data
        missing = torch.full((), math.nan, device=trainer.device)
        mean = torch.stack(self._window).mean() if self._window else missing
        self._window.clear()
        value = float(ranks.all_reduce(mean) if ranks.world_size > 1 else mean)
        step = len(self._rates)
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * value
        smoothed = self._average / (1 - _SMOOTHING ** (step + 1))
        self._rates.append(self.rate(step))
        self._losses.append(smoothed)
        limit = self.early_stop_threshold
        grown = limit is not None and step > 1 and smoothed > limit * min(self._losses)
        if grown or not math.isfinite(smoothed):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self._rates, "losses": self._losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rates, self._losses = list(state["rates"]), list(state["losses"])
