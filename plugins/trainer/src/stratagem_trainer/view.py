"""`TrainerView`: the attributes of a trainer that modules and callbacks use."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stratagem.errors import StratagemError
from stratagem.sdk.runs import Run, assemble
from stratagem.sdk.selection import path_text
from stratagem_trainer.absent import absent
from stratagem_trainer.profilers.base import PassThroughProfiler, Profiler
from stratagem_trainer.saving.last_checkpoint import copy_last
from stratagem_trainer.stage.current_stage import CurrentStage

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from stratagem import Accelerator, Collectives, Prepared, RunConfig, Runtime, Strategy
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.loops.manual_optimizer import ManualOptimizer
    from stratagem_trainer.loops.optimizers import Schedule
    from stratagem_trainer.metrics.metrics import Metrics
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.stage.progress import Progress
    from stratagem_trainer.stage.state import StageState

CHECKPOINTS = "checkpoints"
"""Name of the folder of checkpoints in a run's folder."""


class TrainerView:
    """A trainer as modules and callbacks see it: on every rank in a stage, and in the launching process afterwards.

    It is separate from `Trainer`, so that a module can use its trainer without importing the code that runs it.
    `CurrentStage` has the state of the running or last stage. The properties here read it.

    Args:
        config: selects the components of a run.
        settings: the trainer's settings.
        callbacks: in the order in which they were passed.
        logger: True for the default, False for none, or loggers.
    """

    _next_run: Run | None = None
    """The components of the next run, if `strategy` or `accelerator` was read outside of a stage."""

    def __init__(
        self,
        config: RunConfig,
        settings: TrainerSettings,
        callbacks: Iterable[Callback],
        logger: bool | Sequence[Logger],
    ) -> None:
        self.config, self.settings = config, settings
        self.callbacks = list(callbacks)
        self.given_loggers = logger
        self.profiler: Profiler = PassThroughProfiler()
        """Measures your own code: `with trainer.profiler.profile("name")`. Does nothing without `profiler=`."""
        self.given_seed: int | None = None
        """The last seed of `seed_everything` in the launching process."""
        self.current_stage = CurrentStage()
        self.run_dir = config.run_dir
        self.model: Any = None
        """The module of the running stage; after a stage, the module or callable that was passed for it."""
        self.datamodule: Any = None
        """The `DataModule` of the running or last stage."""
        self.ckpt_path: str | None = None
        """The path of the checkpoint that the stage loads or resumes from. "best" and "last" are resolved."""

    # Progress and limits ----------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """The current epoch, batch and step."""
        return self.current_stage.progress

    @property
    def current_epoch(self) -> int:
        """Index of the current epoch; after a fit, the number of finished epochs."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Number of completed optimizer steps."""
        return self.progress.all_steps

    @property
    def batch_idx(self) -> int:
        """Number of micro-batches of this epoch so far."""
        return self.state.batch_idx

    @property
    def is_last_batch(self) -> bool:
        """Whether the current micro-batch is the last one of its epoch; False if that is unknown."""
        live = self.current_stage.live
        return live is not None and live.current_batch + 1 == live.num_train_batches

    @property
    def max_epochs(self) -> int:
        """The limit of epochs; -1 for no limit."""
        epochs = self.settings.epochs
        return -1 if epochs is None else epochs

    @property
    def max_steps(self) -> int:
        """The limit of optimizer steps; -1 for no limit."""
        steps = self.settings.steps
        return -1 if steps is None else steps

    @property
    def min_epochs(self) -> int | None:
        """Requests to stop before this many epochs are ignored."""
        return self.settings.min_epochs

    @property
    def min_steps(self) -> int | None:
        """Requests to stop before this many optimizer steps are ignored."""
        return self.settings.min_steps

    @property
    def should_stop(self) -> bool:
        """Whether the fit ends after the current step, or was ended so. Set it to the same value on all ranks."""
        return self.current_stage.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.state.should_stop = value

    # What runs --------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Whether a fit is training, not validating."""
        return self.current_stage.running == "train"

    @property
    def validating(self) -> bool:
        """Whether a validation is running, also one in a fit; False in the sanity check."""
        return self.current_stage.running == "validate"

    @property
    def testing(self) -> bool:
        """Whether a test is running."""
        return self.current_stage.running == "test"

    @property
    def predicting(self) -> bool:
        """Whether a prediction is running."""
        return self.current_stage.running == "predict"

    @property
    def sanity_checking(self) -> bool:
        """Whether the sanity check of a fit is running."""
        live = self.current_stage.live
        return live is not None and live.is_sanity_checking

    @property
    def evaluating(self) -> bool:
        """Whether a validation, a test or the sanity check is running."""
        return self.validating or self.testing or self.sanity_checking

    @property
    def is_live(self) -> bool:
        """Whether this process is a rank of a running stage."""
        return self.current_stage.runtime is not None

    @property
    def has_state(self) -> bool:
        """Whether a stage is running in this process, and its objects are built."""
        return self.current_stage.live is not None

    # Batches and loaders ----------------------------------------------------------------------------

    @property
    def num_train_batches(self) -> int | None:
        """Micro-batches per epoch and rank; None if unknown."""
        return self.state.num_train_batches

    @property
    def num_eval_batches(self) -> int | None:
        """Batches of all loaders per evaluation and rank; None if unknown."""
        return self.state.num_eval_batches

    @property
    def num_training_batches(self) -> int | float:
        """Micro-batches per epoch and rank; inf if unknown."""
        return _or_inf(self.current_stage.num_training_batches)

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of a validation per rank, for each loader; inf if unknown."""
        return list(map(_or_inf, self.current_stage.num_eval_batches("validate")))

    @property
    def num_test_batches(self) -> list[int | float]:
        """Batches of a test per rank, for each loader; inf if unknown."""
        return list(map(_or_inf, self.current_stage.num_eval_batches("test")))

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Batches of a prediction per rank, for each loader; inf if unknown."""
        return list(map(_or_inf, self.current_stage.num_eval_batches("predict")))

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches of the sanity check per rank, for each loader."""
        most = self.settings.sanity_steps
        return [number if most == -1 else min(number, most) for number in self.num_val_batches]

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the whole fit, for schedulers; inf if neither epochs nor steps are limited.

        Raises:
            StratagemError: no fit has made its loaders yet.
        """
        data, is_over = self.current_stage.fit_data, not self.is_live
        if data is None and not (is_over and self.current_stage.last.stage == "fit"):
            raise StratagemError(
                "estimated_stepping_batches is known after a fit has made its loaders: read it in "
                "configure_optimizers or later"
            )
        steps: int | float = math.inf if self.max_steps == -1 else self.max_steps
        if self.max_epochs == -1:
            return steps
        per_epoch = self.num_training_batches
        if per_epoch != math.inf:
            per_step = self.settings.accumulate_grad_batches if data is None else data.micro_batches
            per_epoch = math.ceil(per_epoch / per_step)
        return min(steps, per_epoch * max(self.max_epochs, 1))

    @property
    def train_dataloader(self) -> Any:
        """The training loader or loaders, as they were passed or made; None outside of a fit."""
        data = self.current_stage.fit_data
        return None if data is None else data.train_loader

    @property
    def val_dataloaders(self) -> Any:
        """The loaders of a validation, as they were passed or made; None if none is running."""
        data = self.current_stage.fit_data
        return self.current_stage.eval_loaders.get("validate") if data is None else data.val_loader

    @property
    def test_dataloaders(self) -> Any:
        """The loaders of a test, as they were passed or made; None if none is running."""
        return self.current_stage.eval_loaders.get("test")

    @property
    def predict_dataloaders(self) -> Any:
        """The loaders of a prediction, as they were passed or made; None if none is running."""
        return self.current_stage.eval_loaders.get("predict")

    # Metrics and loggers ----------------------------------------------------------------------------

    @property
    def callback_metrics(self) -> Mapping[str, float]:
        """The latest value of each logged key. Waits for the device."""
        live = self.current_stage.live
        return live.metrics.latest() if live is not None else self.current_stage.last.latest

    @property
    def logged_metrics(self) -> Mapping[str, float]:
        """The latest values that loggers get. Waits for the device."""
        live = self.current_stage.live
        return live.metrics.logged() if live is not None else self.current_stage.last.logged

    @property
    def progress_bar_metrics(self) -> Mapping[str, float]:
        """The latest values that were logged with `prog_bar`. Waits for the device."""
        live = self.current_stage.live
        return live.metrics.on_bar() if live is not None else self.current_stage.last.on_bar

    def progress_metrics(self) -> Mapping[str, float]:
        """Return `progress_bar_metrics`."""
        return self.progress_bar_metrics

    @property
    def metrics(self) -> Metrics:
        """Collects the values that modules log."""
        return self.state.metrics

    @property
    def loggers(self) -> list[Logger]:
        """The fit's loggers. On ranks other than 0 they drop all values, so that modules may call them on any rank.

        Outside of a stage, the loggers that were passed to the trainer.
        """
        given, live = self.given_loggers, self.current_stage.live
        if live is None:
            return [] if isinstance(given, bool) else list(given)
        if self.is_main or live.stage != "fit" or isinstance(given, bool):
            return live.loggers
        return [logger.mute() for logger in given]

    @property
    def logger(self) -> Logger | None:
        """The first of `loggers`; None if there is none."""
        return next(iter(self.loggers), None)

    # This process among those of the run ------------------------------------------------------------

    @property
    def runtime(self) -> Runtime:
        """The runtime of the running stage.

        Raises:
            StratagemError: no stage is running in this process.
        """
        runtime = self.current_stage.runtime
        if runtime is None:
            raise StratagemError("no stage of this trainer is running")
        return runtime

    @property
    def collectives(self) -> Collectives:
        """The run's collectives."""
        return self.runtime.collectives

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.runtime.device

    @property
    def global_rank(self) -> int:
        """Rank of this process; 0 outside a stage."""
        return self.runtime.rank if self.is_live else 0

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node; 0 outside a stage."""
        return self.runtime.local_rank if self.is_live else 0

    @property
    def node_rank(self) -> int:
        """Rank of this node; 0 outside a stage."""
        return self.runtime.collectives.node_rank if self.is_live else 0

    @property
    def world_size(self) -> int:
        """Number of ranks of the running stage, or else of the last one; 1 before the first."""
        return self.current_stage.world_size

    @property
    def num_nodes(self) -> int:
        """Number of nodes; 1 outside a stage."""
        return self.runtime.session.run.plan.num_nodes if self.is_live else 1

    @property
    def num_devices(self) -> int:
        """Number of devices on this node; 0 outside a stage."""
        return len(self.runtime.session.run.devices) if self.is_live else 0

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.global_rank == 0

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.global_rank == 0

    # Components of the run --------------------------------------------------------------------------

    @property
    def strategy(self) -> Strategy:
        """The run's strategy; outside of a stage, that of the next stage."""
        return self._run.strategy

    @property
    def accelerator(self) -> Accelerator:
        """The run's accelerator; outside of a stage, that of the next stage."""
        return self._run.accelerator

    @property
    def _run(self) -> Run:
        if self.is_live:
            return self.runtime.session.run
        if self._next_run is None or self._next_run.config is not self.config:
            self._next_run = assemble(self.config)
        return self._next_run

    @property
    def precision(self) -> str:
        """The name of the precision; for an object, the name of its class."""
        precision = self.config.precision
        return precision if isinstance(precision, str) else type(precision).__name__

    @property
    def prepared(self) -> Prepared:
        """The prepared module and optimizers."""
        return self.state.prepared

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the running fit."""
        return list(self.prepared.optimizers)

    @property
    def lr_scheduler_configs(self) -> list[Schedule]:
        """Schedulers of the running fit, with `scheduler`, `interval`, `frequency`, `monitor` and so on."""
        return list(self.state.schedules)

    def manual_optimizers(self) -> ManualOptimizer | list[ManualOptimizer]:
        """Return what `Module.optimizers` returns."""
        optimizers = self.state.manual_optimizers
        if not optimizers:
            raise StratagemError("there are optimizers only during fit")
        return optimizers[0] if len(optimizers) == 1 else optimizers

    @property
    def state(self) -> StageState:
        """The objects of the running stage. After it, an object with only `fn`, `stage`, `status` and `finished`.

        Raises:
            StratagemError: another attribute is read while the objects of a stage don't exist.
        """
        return self.current_stage.state

    # Callbacks --------------------------------------------------------------------------------------

    @property
    def checkpoint_callbacks(self) -> list[Callback]:
        """The callbacks of class `ModelCheckpoint`."""
        from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint

        return [callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)]

    @property
    def checkpoint_callback(self) -> Callback | None:
        """The first of `checkpoint_callbacks`; None if there is none."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Callback]:
        """The callbacks of class `EarlyStopping`."""
        from stratagem_trainer.callbacks.early_stopping import EarlyStopping

        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def early_stopping_callback(self) -> Callback | None:
        """The first of `early_stopping_callbacks`; None if there is none."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> Callback | None:
        """The progress bar; None if there is none."""
        from stratagem_trainer.callbacks.progress import ProgressBar

        return next((each for each in self.callbacks if isinstance(each, ProgressBar)), None)

    # Folders and checkpoints ------------------------------------------------------------------------

    @property
    def log_dir(self) -> str | None:
        """The run's folder, equal on all ranks; None if nothing is written."""
        return self.run_dir

    @property
    def default_root_dir(self) -> str:
        """Absolute path of the folder that contains runs/."""
        return os.path.abspath(self.settings.default_root_dir or ".")

    @property
    def checkpoint_dir(self) -> str:
        """Folder of this run's checkpoints."""
        if self.run_dir is None:
            raise StratagemError("only fit has a folder for checkpoints")
        return os.path.join(self.run_dir, CHECKPOINTS)

    def save_checkpoint(self, path: str | os.PathLike[str], weights_only: bool = False) -> None:
        """Write a checkpoint from which `fit(ckpt_path=…)` resumes exactly. Collective.

        With `checkpoint.async`, it is complete when `when_saved` calls its action.

        After a fit, the checkpoint of its last step is copied, if a callback has kept it.

        Args:
            path: the checkpoint's folder.
            weights_only: leave out optimizers and progress; such a checkpoint is for evaluations only.

        Raises:
            StratagemError: no stage is running in this process, or it hasn't started its first batch; or the fit is
            over,
                and no callback has kept a checkpoint of its last step.
        """
        if self.current_stage.live is None and self.current_stage.last.progress.step:
            copy_last(self.checkpoint_callbacks, self.progress, path_text("path", path), weights_only)
            return
        save = self.state.save
        if save is None:
            raise StratagemError("there is nothing to save before a stage's first batch")
        if weights_only:
            save(path_text("path", path), weights_only=True)
        else:
            save(path_text("path", path))

    def when_saved(self, action: Callable[[], object]) -> None:
        """Call `action` on this rank when all saves so far are complete; immediately if none is in progress."""
        self.runtime.session.checkpointer.when_saved(action)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete a checkpoint. Collective."""
        self.runtime.session.checkpointer.remove(path_text("path", path))

    # Called by the stage's code -----------------------------------------------------------------------

    def enter(
        self, runtime: Runtime, run_dir: str | None, module: Any = None, ckpt_path: str | None = None
    ) -> None:
        """Begin a stage in this process."""
        self.current_stage.enter(runtime)
        self.run_dir, self.model, self.ckpt_path, self.datamodule = run_dir, module, ckpt_path, None

    def go_live(self, state: StageState) -> None:
        """Make the stage's objects available to modules and callbacks."""
        self.current_stage.live = state

    def leave(self) -> None:
        """End the stage in this process."""
        self.current_stage.leave()

    if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any attribute

        def __getattr__(self, name):
            # Python calls this only for attributes that don't exist.
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(absent(name, type(self)))

    def __getstate__(self) -> dict[str, Any]:
        # Workers have their own module and data module.
        return {**vars(self), "model": None, "datamodule": None, "_next_run": None}


def _or_inf(number: int | None) -> int | float:
    return math.inf if number is None else number
