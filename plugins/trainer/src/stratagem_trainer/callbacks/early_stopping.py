"""`EarlyStopping`: end a fit when a metric stops improving."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import Mode, Monitor, check_count

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class EarlyStopping(Callback):
    """Stop the fit if a metric hasn't improved for a while, or has diverged.

    A metric that evaluations log is checked after each validation, any other metric after each epoch.

    Args:
        monitor: name of a logged metric.
        min_delta: the smallest difference to the best value that counts as an improvement; at least 0.
        patience: number of checks in a row without improvement after which the fit ends; 0 is the same as 1.
        verbose: print a line for each improvement, on rank 0.
        mode: whether smaller ("min") or larger ("max") values are better.
        strict: raise an error if the metric isn't logged; False waits until it is.
        check_finite: stop if the metric is NaN or infinite.
        stopping_threshold: stop as soon as the metric is better than this.
        divergence_threshold: stop as soon as the metric is worse than this.
        check_on_train_epoch_end: check after each epoch (True) or after each validation (False). None: see above.
        log_rank_zero_only: accepted and ignored: all ranks decide the same, and only rank 0 prints.

    Attributes:
        best_score: the best value so far; None before the first.
        wait_count: number of checks since the last improvement.
        stopped_epoch: index of the epoch in which it stopped the fit; None if it didn't.
        reason: a sentence that says why it stopped the fit; "" if it didn't.

    Raises:
        ConfigError: an argument is invalid.
    """

    judges_epochs = is_left_out_of_fast_dev_run = True
    is_restored_in_evaluations = False

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: Mode = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        owner = type(self).__name__
        self._monitor = Monitor(monitor, mode, owner, strict)
        check_count(owner, "patience", patience, 0)
        if isinstance(min_delta, str) or not (math.isfinite(min_delta) and min_delta >= 0):
            raise ConfigError(f"{owner} got min_delta={min_delta!r}; pass a number of at least 0")
        for name, value in (("stopping", stopping_threshold), ("divergence", divergence_threshold)):
            if value is not None and math.isnan(value):
                raise ConfigError(f"{owner} got {name}_threshold=nan; pass a number, or None")
        self.patience = patience
        self.min_delta = min_delta
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.check_finite = check_finite
        self.verbose = verbose
        self.check_on_train_epoch_end = check_on_train_epoch_end
        self.best_score: float | None = None
        self.wait_count = 0
        self.stopped_epoch: int | None = None
        self.reason = ""
        self._fitting = False
        self._stopped = False

    @property
    def monitor(self) -> str:
        """Name of the metric."""
        return self._monitor.name

    @property
    def mode(self) -> Mode:
        """Whether smaller ("min") or larger ("max") values are better."""
        return self._monitor.mode

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._fitting = stage == "fit"
        if self._fitting:
            self.stopped_epoch, self.reason, self._stopped = None, "", False

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            self._monitor.before_evaluation(trainer)

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            self._monitor.after_evaluation(trainer)
            if not self._looks_at_epoch_end:
                self._look(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if self._looks_at_epoch_end:
            self._look(trainer)

    @property
    def _looks_at_epoch_end(self) -> bool:
        chosen = self.check_on_train_epoch_end
        return not self._monitor.from_evaluation if chosen is None else chosen

    def state_dict(self) -> dict[str, Any]:
        return {
            "best_score": self.best_score,
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "reason": self.reason,
            "from_evaluation": self._monitor.from_evaluation,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_score = state["best_score"]
        self.wait_count = state["wait_count"]
        self.stopped_epoch = state["stopped_epoch"]
        self.reason = state["reason"]
        self._monitor.from_evaluation = state["from_evaluation"]

    @property
    def state_key(self) -> str:
        return f"{type(self).__qualname__}({self.monitor}, {self._monitor.mode})"

    def _look(self, trainer: TrainerView) -> None:
        value = self._monitor.read(trainer)
        if value is None or self._stopped:
            return
        best = self.best_score
        self.reason = self._judge(value)
        if self.verbose and trainer.is_main and self.best_score != best:
            print(f"{self.monitor} improved to {self.best_score:.6g}", file=sys.stderr, flush=True)
        if self.reason:
            self._stopped = trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            if trainer.is_main:
                # Don't use logging: the line must be visible even if logging isn't configured.
                print(
                    f"Stopping in epoch {trainer.current_epoch + 1} at step {trainer.global_step}:"
                    f" {self.reason}",
                    file=sys.stderr,
                    flush=True,
                )

    def _judge(self, value: float) -> str:
        """Check a value; return the reason to stop, or ""."""
        name, smaller = self.monitor, self._monitor.mode == "min"
        if self.check_finite and not math.isfinite(value):
            return f"{name} is {value}."
        if self._passed(value, self.stopping_threshold, smaller):
            self.best_score = value
            return f"{name} reached {value:.6g}, beyond stopping_threshold {self.stopping_threshold:.6g}."
        if self._passed(value, self.divergence_threshold, not smaller):
            return f"{name} is {value:.6g}, beyond divergence_threshold {self.divergence_threshold:.6g}."
        margin = self.min_delta if smaller else -self.min_delta
        if self._monitor.better(value + margin, self.best_score):
            self.best_score, self.wait_count = value, 0
            return ""
        self.wait_count += 1
        if self.wait_count < max(self.patience, 1):
            return ""
        best = "nothing finite" if self.best_score is None else f"{self.best_score:.6g}"
        margin_text = f" by {self.min_delta:.6g}" if self.min_delta else ""
        times = "time" if self.wait_count == 1 else "times"
        return f"{name} hasn't beaten {best}{margin_text}, {self.wait_count} {times} in a row."

    @staticmethod
    def _passed(value: float, threshold: float | None, below: bool) -> bool:
        return threshold is not None and (value < threshold if below else value > threshold)
