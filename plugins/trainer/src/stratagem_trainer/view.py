"""What modules and callbacks see of a trainer: where its run is, and the live parts of its stage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from stratagem.errors import StratagemError
from stratagem_trainer.live import Live, Progress
from stratagem_trainer.loops import evaluation, resume

if TYPE_CHECKING:
    import torch

    from stratagem import Collectives, Prepared, Runtime, Strategy
    from stratagem.sdk.loops import EvalData, TrainData
    from stratagem_trainer.auto_resume import AutoResume
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.loops.fit_loop import FitLoop
    from stratagem_trainer.loops.manual import ManualOptimizer
    from stratagem_trainer.loops.metrics import Metrics
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.trainer import Trainer

CHECKPOINTS = "checkpoints"
"""Folder of a run's checkpoints within its run folder."""


@dataclass(frozen=True)
class Parts:
    """The objects of a stage that is running in this process."""

    live: Live
    loop: FitLoop | None = None
    train_data: TrainData | None = None
    eval_data: EvalData | None = None


class TrainerView:
    """The part of `Trainer` that is read while it runs.

    Args:
        settings: what the trainer does.
        run_dir: the run's folder, where it was given.
    """

    def __init__(self, settings: TrainerSettings, run_dir: str | None) -> None:
        self.settings = settings
        self.run_dir: str | None = run_dir
        self.should_stop = False
        """Set it to end a fit after the current step; alike on all ranks."""
        self._progress = Progress()
        self._latest: dict[str, float] = {}
        self._live: Parts | None = None
        self._worker: Runtime | None = None
        self._attempts: AutoResume | None = None

    # Where the run is -------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """Epoch, batch and step."""
        return self._live.live.progress if self._live is not None else self._progress

    @property
    def current_epoch(self) -> int:
        """Index of the current epoch; how many were finished, after a fit."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Completed optimizer steps."""
        return self.progress.step

    @property
    def batch_idx(self) -> int:
        """Micro-batches of this epoch so far."""
        return self._parts.loop.batch_idx if self._parts.loop is not None else 0

    @property
    def max_epochs(self) -> int | None:
        """The limit of epochs, where there is one."""
        return self.settings.epochs

    @property
    def max_steps(self) -> int | None:
        """The limit of optimizer steps, where there is one."""
        return self.settings.max_steps

    @property
    def num_train_batches(self) -> int | None:
        """Micro-batches per epoch and rank, where known."""
        return self._parts.loop.num_batches if self._parts.loop is not None else None

    @property
    def num_eval_batches(self) -> int | None:
        """Batches per evaluation and rank, where known."""
        parts = self._parts
        if parts.eval_data is None:
            return None
        stage = "validate" if parts.live.stage == "fit" else parts.live.stage
        return evaluation.num_batches(parts.live, parts.eval_data, stage)

    @property
    def callback_metrics(self) -> Mapping[str, float]:
        """The latest value of everything that was logged; waits for the device."""
        return self._live.live.metrics.latest() if self._live is not None else self._latest

    def progress_metrics(self) -> Mapping[str, float]:
        """The latest values that were logged with `prog_bar`; waits for the device."""
        return self.metrics.on_bar()

    # Live parts, for modules and callbacks ------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether this process is a rank of a running stage."""
        return self._worker is not None

    @property
    def strategy(self) -> Strategy:
        """The run's strategy, as this worker has it."""
        return self.runtime.session.run.strategy

    @property
    def runtime(self) -> Runtime:
        """The live runtime.

        Raises:
            StratagemError: no stage runs in this process.
        """
        if self._worker is None:
            raise StratagemError("no stage of this trainer runs now")
        return self._worker

    @property
    def collectives(self) -> Collectives:
        """How the ranks talk."""
        return self.runtime.collectives

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.runtime.device

    @property
    def global_rank(self) -> int:
        """This process among all; 0 outside a stage."""
        return self._worker.rank if self._worker is not None else 0

    @property
    def local_rank(self) -> int:
        """This process among those of its node; 0 outside a stage."""
        return self._worker.local_rank if self._worker is not None else 0

    @property
    def world_size(self) -> int:
        """Number of ranks; 1 outside a stage."""
        return self._worker.world_size if self._worker is not None else 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.global_rank == 0

    @property
    def metrics(self) -> Metrics:
        """Where modules log."""
        return self._parts.live.metrics

    @property
    def prepared(self) -> Prepared:
        """The prepared module and optimizers."""
        return self._parts.live.prepared

    @property
    def loggers(self) -> list[Logger]:
        """Live loggers; empty on all ranks but 0."""
        return self._parts.live.loggers

    @property
    def checkpoint_dir(self) -> str:
        """Where this run's checkpoints go."""
        if self.run_dir is None:
            raise StratagemError("only fit has a folder for checkpoints")
        return os.path.join(self.run_dir, CHECKPOINTS)

    def manual_optimizers(self) -> ManualOptimizer | list[ManualOptimizer]:
        """What `Module.optimizers` returns."""
        loop = self._parts.loop
        if loop is None:
            raise StratagemError("there are optimizers only during fit")
        return loop.manual[0] if len(loop.manual) == 1 else loop.manual

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which `fit(ckpt_path=…)` continues exactly. Collective."""
        parts = self._parts
        if self._attempts is not None:
            self._attempts.saving(os.fspath(path), self.progress.step)
        resume.save(cast("Trainer", self), parts.live, parts.train_data, os.fspath(path))

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete a checkpoint. Collective."""
        self.runtime.session.checkpointer.remove(os.fspath(path))

    # For the stage ------------------------------------------------------------------------------------

    def enter(self, runtime: Runtime, run_dir: str | None, attempts: AutoResume | None) -> None:
        """Begin a stage in this process."""
        self._worker, self.run_dir, self.should_stop = runtime, run_dir, False
        self._attempts = attempts

    def go_live(
        self, live: Live, loop: FitLoop | None, train_data: TrainData | None, eval_data: EvalData | None
    ) -> None:
        """Show the stage's objects to modules and callbacks."""
        self._live = Parts(live, loop, train_data, eval_data)

    def leave(self) -> None:
        """End the stage in this process."""
        self._live = self._worker = self._attempts = None

    @property
    def live_or_none(self) -> Live | None:
        """The stage's objects, if it has come that far."""
        return self._live.live if self._live is not None else None

    @property
    def _parts(self) -> Parts:
        if self._live is None:
            raise StratagemError("no stage of this trainer runs now")
        return self._live

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None, "_worker": None, "_attempts": None}
