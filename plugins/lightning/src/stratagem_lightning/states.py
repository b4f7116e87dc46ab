"""What a trainer does, as Lightning's enumerations have it."""

from __future__ import annotations

from enum import Enum
from typing import Any


class _Text(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class TrainerFn(_Text):
    """Which method of the trainer runs."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(_Text):
    """What runs within it."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class TrainerStatus(_Text):
    """How far it has come."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class TrainerState:
    """What `Trainer.state` has: `fn`, `stage` and `status`, for annotations."""

    fn: TrainerFn | None
    stage: RunningStage | None
    status: TrainerStatus
    finished: bool


class LiveState:
    """A stage's state, whose `fn`, `stage` and `status` are the enumerations; all else is the stage's own.

    Args:
        state: the stage's.
        trainer: says what runs within it.
    """

    _state: Any
    _trainer: Any

    def __init__(self, state: Any, trainer: Any) -> None:
        vars(self).update(_state=state, _trainer=trainer)

    @property
    def fn(self) -> TrainerFn | None:
        """Which method of the trainer runs, or ran last; None before the first."""
        return None if self._state.fn is None else TrainerFn(self._state.fn)

    @property
    def stage(self) -> RunningStage | None:
        """What runs within it; None where nothing does."""
        running = ("sanity_checking", "validating", "training", "testing", "predicting")
        return next((_STAGES[each] for each in running if getattr(self._trainer, each)), None)

    @property
    def status(self) -> TrainerStatus:
        """How far it has come."""
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
