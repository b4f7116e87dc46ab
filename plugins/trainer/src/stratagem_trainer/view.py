"""What modules and callbacks see of a trainer: where its run is, and what its stage is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stratagem.errors import StratagemError
from stratagem_trainer.profilers.base import PassThroughProfiler, Profiler
from stratagem_trainer.progress import Progress

if TYPE_CHECKING:
    import torch

    from stratagem import Collectives, Prepared, RunConfig, Runtime, Strategy
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.loops.manual import ManualOptimizer
    from stratagem_trainer.loops.metrics import Metrics
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.state import StageState

CHECKPOINTS = "checkpoints"
"""Folder of a run's checkpoints within its run folder."""


class TrainerView:
    """A trainer as modules and callbacks see it: where its run is, and what it is made of.

    Apart from `Trainer`, so that a module knows its trainer without importing what runs it.

    Args:
        config: which parts its runs are made of.
        settings: what it does.
        callbacks: in the order in which they were given.
        logger: True for the default, False for none, or loggers.
    """

    def __init__(
        self,
        config: RunConfig,
        settings: TrainerSettings,
        callbacks: Iterable[Callback],
        logger: bool | Sequence[Logger],
    ) -> None:
        self.config = config
        self.settings = settings
        self.callbacks = list(callbacks)
        self.given_loggers = logger
        self.run_dir = config.run_dir
        self.profiler: Profiler = PassThroughProfiler()
        """Measures parts of your own by `with trainer.profiler.profile("name")`; nothing without `profiler=`."""
        self.given_seed: int | None = None
        """Of `seed_everything` in the launching process."""
        self._progress = Progress()
        self._latest: dict[str, float] = {}
        self._state: StageState | None = None
        self._worker: Runtime | None = None

    # Where the run is -------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """Epoch, batch and step."""
        return self._state.progress if self._state is not None else self._progress

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
        return self.state.batch_idx

    @property
    def should_stop(self) -> bool:
        """Whether the fit ends after the current step; set it alike on all ranks."""
        return self._state is not None and self._state.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.state.should_stop = value

    @property
    def sanity_checking(self) -> bool:
        """Whether the validation that runs is the one that a fit tries first."""
        return self._state is not None and self._state.is_sanity_checking

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
        return self.state.num_train_batches

    @property
    def num_eval_batches(self) -> int | None:
        """Batches per evaluation and rank, where known."""
        return self.state.num_eval_batches

    @property
    def callback_metrics(self) -> Mapping[str, float]:
        """The latest value of everything that was logged; waits for the device."""
        return self._state.metrics.latest() if self._state is not None else self._latest

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
        return self.state.metrics

    @property
    def prepared(self) -> Prepared:
        """The prepared module and optimizers."""
        return self.state.prepared

    @property
    def loggers(self) -> list[Logger]:
        """The fit's loggers; on ranks other than 0 they drop everything, so that modules may call them anywhere."""
        state, given = self.state, self.given_loggers
        if self.is_main or state.stage != "fit" or isinstance(given, bool):
            return state.loggers
        return [logger.mute() for logger in given]

    @property
    def checkpoint_dir(self) -> str:
        """Where this run's checkpoints go."""
        if self.run_dir is None:
            raise StratagemError("only fit has a folder for checkpoints")
        return os.path.join(self.run_dir, CHECKPOINTS)

    def manual_optimizers(self) -> ManualOptimizer | list[ManualOptimizer]:
        """What `Module.optimizers` returns."""
        optimizers = self.state.manual_optimizers
        if not optimizers:
            raise StratagemError("there are optimizers only during fit")
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def save_checkpoint(self, path: str | os.PathLike[str], weights_only: bool = False) -> None:
        """Write a checkpoint from which `fit(ckpt_path=…)` continues exactly, or the weights alone. Collective."""
        save = self.state.save
        if save is None:
            raise StratagemError("there is nothing to save before a stage's first batch")
        if weights_only:
            save(os.fspath(path), weights_only=True)
        else:
            save(os.fspath(path))

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete a checkpoint. Collective."""
        self.runtime.session.checkpointer.remove(os.fspath(path))

    # For the stage ------------------------------------------------------------------------------------

    def enter(self, runtime: Runtime, run_dir: str | None) -> None:
        """Begin a stage in this process."""
        self._worker, self.run_dir = runtime, run_dir

    def go_live(self, state: StageState) -> None:
        """Show the stage's objects to modules and callbacks."""
        self._state = state

    def leave(self) -> None:
        """End the stage in this process."""
        self._state = self._worker = None

    @property
    def has_state(self) -> bool:
        """Whether a stage runs in this process and has come as far as its objects."""
        return self._state is not None

    @property
    def state(self) -> StageState:
        """The objects of the running stage.

        Raises:
            StratagemError: no stage runs in this process, or it hasn't come that far.
        """
        if self._state is None:
            raise StratagemError("no stage of this trainer runs now")
        return self._state

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None, "_worker": None}
