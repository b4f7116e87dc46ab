"""What a trainer does, as Lightning's enumerations have it."""

from __future__ import annotations

from enum import Enum


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
