"""`TrainingEpochEnd`: the actions at the end of a training epoch. The policy decides their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem_trainer.loops.policy import EpochEnd
from stratagem_trainer.loops.schedules import step_schedules

if TYPE_CHECKING:
    from stratagem_trainer.loops.stopping import Stop
    from stratagem_trainer.loops.validations import Validations
    from stratagem_trainer.stage.state import StageState


class TrainingEpochEnd(EpochEnd):
    """See `EpochEnd`.

    Args:
        state: the stage's objects.
        validations: the fit's validations.
        stop: decides whether the fit ends early.
        is_cut: whether the epoch ended before its last batch.
        is_skipped: whether `on_train_batch_start` ended the epoch.
    """

    def __init__(
        self,
        state: StageState,
        validations: Validations,
        stop: Stop,
        *,
        is_cut: bool,
        is_skipped: bool,
    ) -> None:
        self._state, self._validations, self._stop = state, validations, stop
        self.is_cut, self.is_skipped = is_cut, is_skipped

    def is_stopped(self) -> bool:
        return self._state.should_stop and self._stop.is_heard()

    def validate(self, at_a_stop: bool = False) -> None:
        self._validations.run_at_an_end(at_a_stop)

    def step_schedulers(self, takes_metric: bool | None = None) -> None:
        step_schedules(self._state, "epoch", self._state.progress.epoch + 1, takes_metric=takes_metric)

    def reduce_metrics(self) -> None:
        self._state.metrics.end_epoch(self._state.progress.step, self._state.progress.epoch)

    def mark_as_over(self) -> None:
        self._state.progress.epoch_is_over = True

    def call_module(self) -> None:
        self._state.hooks.of_module("on_train_epoch_end")

    def call_callbacks(self, judging: bool | None = None) -> None:
        if judging is None:
            self._state.hooks.of_callbacks("on_train_epoch_end")
        else:
            self._state.hooks.end_epoch(judging)
