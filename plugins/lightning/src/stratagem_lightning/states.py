"""Lightning's enumerations of a trainer's state."""

from __future__ import annotations

from enum import Enum
from typing import Any


class _Text(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class TrainerFn(_Text):
    """The trainer's method that runs."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(_Text):
    """The loop that runs within that method."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class TrainerStatus(_Text):
    """The status of that method."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class TrainerState:
    """The type of `Trainer.state`, for annotations, with `fn`, `stage` and `status`."""

    fn: TrainerFn | None
    stage: RunningStage | None
    status: TrainerStatus
    finished: bool


class LiveState:
    """A stage's state, with Lightning's enumerations as `fn`, `stage` and `status`.

    Args:
        state: of the stage.
        trainer: says which loop runs.
    """

    _state: Any
    _trainer: Any

    def __init__(self, state: Any, trainer: Any) -> None:
        vars(self).update(_state=state, _trainer=trainer)

    @property
    def fn(self) -> TrainerFn | None:
        """The trainer's method that runs, or ran last; None before the first."""
        return None if self._state.fn is None else TrainerFn(self._state.fn)

    @property
    def stage(self) -> RunningStage | None:
        """The loop that runs within that method; None if none does."""
        running = ("sanity_checking", "validating", "training", "testing", "predicting")
        return next((_STAGES[each] for each in running if getattr(self._trainer, each)), None)

    @property
    def status(self) -> TrainerStatus:
        """The status of that method."""
        return TrainerStatus(self._state.status)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_state"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._state, name, value)


_STAGES = {
    "sanity_checking": RunningStage.SANITY_CHECKING,
    "validating": RunningStage.VALIDATING,
    "training": RunningStage.TRAINING,
    "testing": RunningStage.TESTING,
    "predicting": RunningStage.PREDICTING,
}
