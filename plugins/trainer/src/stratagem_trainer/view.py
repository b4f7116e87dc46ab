"""What modules and callbacks see of a trainer: where its run is, and what its stage is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from stratagem.errors import StratagemError
from stratagem.sdk.selection import path_text
from stratagem_trainer.absent import absent
from stratagem_trainer.profilers.base import PassThroughProfiler, Profiler
from stratagem_trainer.rank_view import RankView
from stratagem_trainer.run_view import RunView
from stratagem_trainer.saving.last_checkpoint import copy_last
from stratagem_trainer.stage.ended import EndedState
from stratagem_trainer.stage.last_stage import Seen
from stratagem_trainer.stage.progress import Progress

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stratagem import Prepared, RunConfig, Runtime
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.loops.optimizers import Schedule
    from stratagem_trainer.loops.wrapped_optimizers import ManualOptimizer
    from stratagem_trainer.metrics.metrics import Metrics
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.stage.state import StageState

_NOT_SENT = {"model": None, "datamodule": None, "_given": None, "_next_run": None}
"""Workers get the stage's own."""

CHECKPOINTS = "checkpoints"
"""Folder of a run's checkpoints within its run folder."""


class TrainerView(RunView, RankView):
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
        super().__init__()
        self.config = config
        self.settings = settings
        self.callbacks = list(callbacks)
        self.given_loggers = logger
        self.run_dir = config.run_dir
        self.profiler: Profiler = PassThroughProfiler()
        """Measures parts of your own by `with trainer.profiler.profile("name")`; nothing without `profiler=`."""
        self.given_seed: int | None = None
        """Of `seed_everything` in the launching process."""

    @property
    def batch_idx(self) -> int:
        """Micro-batches of this epoch so far."""
        return self.state.batch_idx

    @property
    def should_stop(self) -> bool:
        """Whether the fit ends after the current step, or was ended so; set it alike on all ranks."""
        if self._state is not None:
            return self._state.should_stop
        return self._worker is None and self._seen.was_stopped

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.state.should_stop = value

    @property
    def num_train_batches(self) -> int | None:
        """Micro-batches per epoch and rank, where known."""
        return self.state.num_train_batches

    @property
    def num_eval_batches(self) -> int | None:
        """Batches per evaluation and rank, where known."""
        return self.state.num_eval_batches

    # Live parts, for modules and callbacks ------------------------------------------------------------

    @property
    def precision(self) -> str:
        """The precision's name, or its class's for an object."""
        precision = self.config.precision
        return precision if isinstance(precision, str) else type(precision).__name__

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the fit that runs."""
        return list(self.prepared.optimizers)

    @property
    def lr_scheduler_configs(self) -> list[Schedule]:
        """The learning rate schedulers of the fit that runs: `scheduler`, `interval`, `frequency`, `monitor`, …"""
        return list(self.state.schedules)

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
        """The fit's loggers; on ranks other than 0 they drop everything, so that modules may call them anywhere.

        Those that the trainer was given where no stage runs.
        """
        given = self.given_loggers
        if self._state is None:
            return [] if isinstance(given, bool) else list(given)
        state = self._state
        if self.is_main or state.stage != "fit" or isinstance(given, bool):
            return state.loggers
        return [logger.mute() for logger in given]

    @property
    def logger(self) -> Logger | None:
        """The first of them; None on all ranks but 0."""
        return next(iter(self.loggers), None)

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
        """Write a checkpoint from which `fit(ckpt_path=…)` continues exactly. Collective.

        With `checkpoint.async`, it is complete when `when_saved` says so.

        After a fit, the checkpoint that it kept of its last step is copied.

        Args:
            path: of the checkpoint's folder.
            weights_only: leave out optimizers and where the run is: for evaluations alone.

        Raises:
            StratagemError: no stage runs in this process, or it hasn't come to its first batch; or the fit that
                ended has kept no checkpoint of its last step.
        """
        if self._state is None and self._seen.progress.step:
            copy_last(self, path_text("path", path), weights_only)
            return
        save = self.state.save
        if save is None:
            raise StratagemError("there is nothing to save before a stage's first batch")
        if weights_only:
            save(path_text("path", path), weights_only=True)
        else:
            save(path_text("path", path))

    def when_saved(self, action: Callable[[], object]) -> None:
        """Call `action` on this rank once all that was saved so far is complete; at once where nothing is written."""
        self.runtime.session.checkpointer.when_saved(action)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete a checkpoint. Collective."""
        self.runtime.session.checkpointer.remove(path_text("path", path))

    # For the stage ------------------------------------------------------------------------------------

    def enter(
        self, runtime: Runtime, run_dir: str | None, module: Any = None, ckpt_path: str | None = None
    ) -> None:
        """Begin a stage in this process."""
        self._worker, self.run_dir, self.model, self.ckpt_path = runtime, run_dir, module, ckpt_path
        is_fit = self._seen.stage == "fit"
        self._at, self.datamodule = Progress() if is_fit else replace(self._seen.progress), None

    def begin_at(self, epoch: int) -> None:
        """Say which epoch a continued fit begins with, before its loaders are made."""
        self._at = Progress(epoch=epoch)

    def show_data(self, data: FitData) -> None:
        """Show the loaders of a fit."""
        self._data = data

    def show_loader(self, stage: str, loader: Any) -> None:
        """Show the loader of an evaluation."""
        self._loaders = {stage: loader}

    def go_live(self, state: StageState) -> None:
        """Show the stage's objects to modules and callbacks."""
        self._state = state

    def leave(self) -> None:
        """End the stage in this process."""
        self._state = self._worker = self._data = None
        self._loaders = {}

    def seen(self) -> Seen:
        """Return what the launching process's trainer is to say of the stage that has run."""
        state = self._state
        assert state is not None  # a stage asks for it at its own end
        return Seen(
            state.stage,
            "finished",
            state.progress,
            state.metrics.latest(),
            state.metrics.logged(),
            state.metrics.on_bar(),
            state.num_train_batches,
            state.eval_batches,
            self.run_dir,
            self.world_size,
            state.should_stop,
        )

    @property
    def has_state(self) -> bool:
        """Whether a stage runs in this process and has come as far as its objects."""
        return self._state is not None

    @property
    def state(self) -> StageState:
        """The objects of the running stage; `fn`, `stage`, `status` and `finished` of the last one afterwards.

        Raises:
            StratagemError: (of any other attribute) no stage runs in this process, or it hasn't come that far.
        """
        if self._state is None:
            status = self._seen.status if self._worker is None else "running"
            return cast("StageState", EndedState(self._seen.stage, status))
        return self._state

    def __getattr__(self, name: str) -> Any:
        # Only of what isn't there.
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(absent(name, type(self)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None, "_worker": None, "_data": None, "_loaders": {}, **_NOT_SENT}
