"""`StageState`: everything that a running stage consists of, in one worker."""

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
"""Stage → the step that runs its batches."""


@dataclass(eq=False)
class StageState:
    """Module, optimizers, metrics, callbacks and progress; made by `stratagem_trainer.stage.build.begin_stage`."""

    runtime: Runtime
    stage: str
    """"fit", "validate", "test" or "predict"."""
    module: Any
    """The user's `Module`, which knows its trainer."""
    settings: TrainerSettings
    run_dir: str | None
    """Equal on all ranks; None where the stage writes nothing."""
    loggers: list[Logger]
    """Empty on all ranks but 0."""
    hooks: HookRunner
    metrics: Metrics
    prepared: Prepared
    guard: ReplicaGuard
    schedules: Sequence[Schedule]
    wants_closure: bool
    """Whether an optimizer evaluates the loss itself."""
    progress: Progress = field(default_factory=Progress)
    steps_schedules_by_hand: bool = False
    """Whether the module, which optimizes manually, steps its schedulers, too."""
    should_stop: bool = False
    """Ends a fit after the current step; alike on all ranks."""
    running: str = ""
    """The stage, or within a fit "train", "validate" or "sanity_check"."""
    is_sanity_checking: bool = False
    """Whether the validation that runs is the one that a fit tries first."""
    micro_batches: int = 1
    """Per optimizer step."""
    batch_idx: int = 0
    """Micro-batches of this epoch so far."""
    current_batch: int = -1
    """Index within its epoch of the micro-batch that was begun last."""
    num_train_batches: int | None = None
    """Per epoch and rank, where known."""
    num_eval_batches: int | None = None
    """Per evaluation and rank, where known."""
    datamodule: Any = None
    """The `DataModule`, where there is one."""
    eval_batches: dict[str, list[int | None]] = field(default_factory=dict)
    """Stage → the same for each loader."""
    status: str = "running"
    """Of a stage that runs; others have an `EndedState`."""
    finished: bool = False
    manual_optimizers: list[ManualOptimizer] = field(default_factory=list)
    """For a module that steps by itself; empty outside of a fit."""
    train_data: FitData | None = None
    """Of a fit."""
    eval_data: EvalLoader | None = None
    """The loader that an evaluation reads."""
    batch_counts: bool = True
    """Whether the batch of an evaluation counts, or is there only because every rank has to run a forward."""
    boundary: Boundary | None = None
    """Of a fit: where it may be asked to stop."""
    save: Callable[..., None] | None = None
    """Writes a checkpoint of the whole run to a path, or with weights_only=True of its weights; collective. None
    before there is anything to write."""

    @property
    def fn(self) -> str:
        """ "fit", "validate", "test" or "predict"."""
        return self.stage
