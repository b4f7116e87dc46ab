"""`Timer`: end a fit after a duration, and report how long stages took."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.durations import max_time_s

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

_STAGES = {"train": "fit", "fit": "fit", "validate": "validate", "test": "test", "predict": "predict"}


class Timer(Callback):
    """Measure stages, and end a fit when it has taken `duration`. The time of resumed runs adds up.

    Rank 0's clock decides. With a duration, it is read after each step or epoch.

    Args:
        duration: "DD:HH:MM:SS", a timedelta, or a dict of its keywords such as {"hours": 2}; None only measures.
        interval: whether to check after each "step" or after each "epoch".
        verbose: print a line when the time is over, on rank 0.

    Raises:
        ConfigError: the duration or the interval is invalid.
    """

    is_restored_in_evaluations = False

    def __init__(
        self,
        duration: str | timedelta | Mapping[str, int] | None = None,
        interval: Literal["step", "epoch"] = "step",
        verbose: bool = True,
    ) -> None:
        if interval not in ("step", "epoch"):
            raise ConfigError(f'Timer got interval={interval!r}; allowed are "step" and "epoch"')
        self._duration_s = max_time_s(duration)
        self.interval, self.verbose = interval, verbose
        self._began: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._earlier_s = 0.0

    def time_elapsed(self, stage: str = "train") -> float:
        """Return how many seconds a stage ("train", "validate", …) has taken. A fit's earlier runs are included."""
        stage = _stage(stage)
        earlier = self._earlier_s if stage == "fit" else 0.0
        if stage in self._began:
            return earlier + time.monotonic() - self._began[stage]
        return earlier + self._took.get(stage, 0.0)

    def time_remaining(self, stage: str = "train") -> float | None:
        """Return how many seconds are left; None without a duration."""
        return None if self._duration_s is None else self._duration_s - self.time_elapsed(stage)

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._began[stage] = time.monotonic()
        self._took.pop(stage, None)
        if stage == "fit":
            self._look(trainer)

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._duration_s is not None and self.interval == "step":
            self._look(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if self.interval == "epoch":
            self._look(trainer)

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._took[stage] = time.monotonic() - self._began.pop(stage)

    def state_dict(self) -> dict[str, Any]:
        return {
            "time_elapsed_s": {
                stage: self.time_elapsed(stage) for stage in ("fit", "validate", "test", "predict")
            }
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        elapsed = dict(state["time_elapsed_s"])
        self._earlier_s = elapsed.pop("fit", 0.0)
        self._took = elapsed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_began": {}}  # monotonic clocks of processes differ

    def _look(self, trainer: TrainerView) -> None:
        if self._duration_s is None or trainer.should_stop:
            return
        if trainer.collectives.broadcast(self.time_elapsed() >= self._duration_s):
            trainer.should_stop = True
            if self.verbose and trainer.is_main:
                spent = timedelta(seconds=int(self.time_elapsed()))
                print(
                    f"Stopping at step {trainer.global_step}: {spent} are over.", file=sys.stderr, flush=True
                )


def _stage(name: str) -> str:
    if name not in _STAGES:
        raise ConfigError(f"Timer has no stage {name!r}; allowed are {', '.join(_STAGES)}")
    return _STAGES[name]
