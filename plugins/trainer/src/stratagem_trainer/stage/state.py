"""`StageState`: the objects of a running stage in one worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stratagem_trainer.stage.progress import Progress

if TYPE_CHECKING:
    from stratagem import Prepared, Runtime
    from stratagem.sdk.loops import ReplicaGuard
    from stratagem_trainer.data.evaluation import EvalLoader
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.loops.boundary import Boundary
    from stratagem_trainer.loops.manual_optimizer import ManualOptimizer
    from stratagem_trainer.loops.optimizers import Schedule
    from stratagem_trainer.metrics.metrics import Metrics
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.stage.hooks import HookRunner


STEPS = {
    "fit": "training_step",
    "validate": "validation_step",
    "test": "test_step",
    "predict": "predict_step",
}
"""Stage → the method that is called with its batches."""


@dataclass(eq=False)
class StageState:
    """Module, optimizers, metrics, callbacks and progress. `stratagem_trainer.stage.build.begin_stage` makes it."""

    runtime: Runtime
    stage: str
    """"fit", "validate", "test" or "predict"."""
    module: Any
    """The user's `Module`. It has a reference to its trainer."""
    settings: TrainerSettings
    run_dir: str | None
    """Equal on all ranks; None if the stage writes nothing."""
    loggers: list[Logger]
    """Empty on all ranks but 0."""
    hooks: HookRunner
    metrics: Metrics
    prepared: Prepared
    guard: ReplicaGuard
    schedules: Sequence[Schedule]
    wants_closure: bool
    """Whether an optimizer calls a closure that evaluates the loss."""
    progress: Progress = field(default_factory=Progress)
    steps_schedules_by_hand: bool = False
    """Whether a module that optimizes manually also steps its schedulers itself."""
    should_stop: bool = False
    """Whether the fit ends after the current step; equal on all ranks."""
    running: str = ""
    """The stage; within a fit "train", "validate" or "sanity_check"."""
    is_sanity_checking: bool = False
    """Whether the running validation is the sanity check at the start of a fit."""
    micro_batches: int = 1
    """Number of micro-batches per optimizer step."""
    batch_idx: int = 0
    """Number of micro-batches of this epoch so far."""
    current_batch: int = -1
    """Index in its epoch of the micro-batch that was started last; -1 before the first."""
    num_train_batches: int | None = None
    """Training batches per epoch and rank; None if unknown."""
    num_eval_batches: int | None = None
    """Batches of all loaders per evaluation and rank; None if unknown."""
    datamodule: Any = None
    """The user's `DataModule`; None if there is none."""
    eval_batches: dict[str, list[int | None]] = field(default_factory=dict)
    """Stage → batches per rank of each loader; None for a loader of unknown length."""
    status: str = "running"
    """Status of a running stage. Ended stages have an `EndedState`."""
    finished: bool = False
    manual_optimizers: list[ManualOptimizer] = field(default_factory=list)
    """Optimizers of a module that optimizes manually; empty outside of a fit."""
    train_data: FitData | None = None
    """Loaders of a fit; None in other stages."""
    eval_data: EvalLoader | None = None
    """The loader that the evaluation is reading."""
    batch_counts: bool = True
    """Whether an evaluation's batch counts. Others only make all ranks run the same number of forwards."""
    boundary: Boundary | None = None
    """Where the stage may be stopped; None before the loop starts and after it has ended."""
    save: Callable[..., None] | None = None
    """Writes a checkpoint of the whole run to a path, or only its weights with `weights_only=True`. Collective.

    None until the stage can be saved.
    """

    @property
    def fn(self) -> str:
        """ "fit", "validate", "test" or "predict"."""
        return self.stage
