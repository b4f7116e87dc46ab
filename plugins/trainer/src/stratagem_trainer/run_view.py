"""`RunView`: where a trainer's run is, while it runs and afterwards."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratagem.errors import StratagemError
from stratagem_trainer.stage.last_stage import Seen
from stratagem_trainer.stage.progress import Progress

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.stage.state import StageState


class RunView:
    """What a trainer says in a stage, on every rank, and in the launching process afterwards.

    There it is rank 0's, as the stage left it, and before the first stage what nothing has been done of.
    """

    settings: TrainerSettings
    callbacks: list[Callback]
    run_dir: str | None
    _state: StageState | None
    _worker: Runtime | None
    _data: FitData | None
    """The loaders of the fit that runs."""

    def __init__(self) -> None:
        self._seen = Seen()
        self._state = self._worker = self._data = None
        self._loaders: dict[str, Any] = {}
        self._at = Progress()
        self.model: Any = None
        """The module of the stage that runs, or ran last; what was passed to `fit` and its like."""
        self.datamodule: Any = None
        """The `DataModule` of the stage that runs, or ran last."""
        self.ckpt_path: str | None = None
        """The checkpoint that the stage was given; "best" and "last" are a path by then."""

    # Progress ---------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """Epoch, batch and step."""
        if self._state is not None:
            return self._state.progress
        return self._at if self._worker is not None else self._seen.progress

    @property
    def progress_before(self) -> Progress:
        """Where the stage before has ended; the beginning, where there was none."""
        return self._seen.progress

    @property
    def current_epoch(self) -> int:
        """Index of the current epoch; how many were finished, after a fit."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Completed optimizer steps."""
        return self.progress.all_steps

    @property
    def max_epochs(self) -> int:
        """The limit of epochs; -1 where there is none."""
        epochs = self.settings.epochs
        return -1 if epochs is None else epochs

    @property
    def max_steps(self) -> int:
        """The limit of optimizer steps; -1 where there is none."""
        steps = self.settings.steps
        return -1 if steps is None else steps

    @property
    def min_epochs(self) -> int | None:
        """What wants to stop before so many epochs isn't heard."""
        return self.settings.min_epochs

    @property
    def min_steps(self) -> int | None:
        """The same for optimizer steps."""
        return self.settings.min_steps

    @property
    def sanity_checking(self) -> bool:
        """Whether the validation that runs is the one that a fit tries first."""
        return self._state is not None and self._state.is_sanity_checking

    @property
    def training(self) -> bool:
        """Whether a fit runs, and no validation in it."""
        return self._runs("train")

    @property
    def validating(self) -> bool:
        """Whether a validation runs, in a fit or alone, but for the one that a fit tries first."""
        return self._runs("validate")

    @property
    def testing(self) -> bool:
        """Whether a test runs."""
        return self._runs("test")

    @property
    def predicting(self) -> bool:
        """Whether a prediction runs."""
        return self._runs("predict")

    @property
    def evaluating(self) -> bool:
        """Whether a validation, in a fit or alone, or a test runs."""
        return self.validating or self.testing or self.sanity_checking

    def _runs(self, what: str) -> bool:
        if self._state is None and self._worker is not None:
            return ("train" if self._seen.stage == "fit" else self._seen.stage) == what
        return self._state is not None and self._state.running == what

    # Batches ----------------------------------------------------------------------------------------

    @property
    def num_training_batches(self) -> int | float:
        """Micro-batches per epoch and rank; inf where that isn't known."""
        number = self._state.num_train_batches if self._state is not None else None
        if self._data is not None and number is None:
            number = self._data.num_train_batches
        if self._data is None and self._state is None:
            number = self._seen.train_batches
        return math.inf if number is None else number

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of a validation per rank, of each loader; inf where that isn't known."""
        return self._eval_batches("validate")

    @property
    def num_test_batches(self) -> list[int | float]:
        """The same for a test."""
        return self._eval_batches("test")

    @property
    def num_predict_batches(self) -> list[int | float]:
        """The same for a prediction."""
        return self._eval_batches("predict")

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches of the validation that a fit tries first, of each loader."""
        most = self.settings.sanity_steps
        return [number if most == -1 else min(number, most) for number in self.num_val_batches]

    def _eval_batches(self, stage: str) -> list[int | float]:
        known = self._state.eval_batches if self._state is not None else self._seen.eval_batches
        return [math.inf if number is None else number for number in known.get(stage, ())]

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the whole fit, for schedulers; inf where neither epochs nor steps are limited.

        Raises:
            StratagemError: no fit has come to its loaders yet.
        """
        if self._data is None and (self._worker is not None or self._seen.stage != "fit"):
            raise StratagemError(
                "estimated_stepping_batches is known once a fit has its loaders: ask for it in configure_optimizers "
                "or later"
            )
        steps: int | float = math.inf if self.max_steps == -1 else self.max_steps
        if self.max_epochs == -1:
            return steps
        per_epoch = self.num_training_batches
        if per_epoch != math.inf:
            per_step = (
                self.settings.accumulate_grad_batches if self._data is None else self._data.micro_batches
            )
            per_epoch = math.ceil(per_epoch / per_step)
        return min(steps, per_epoch * max(self.max_epochs, 1))

    @property
    def is_last_batch(self) -> bool:
        """Whether the micro-batch that was begun last is its epoch's last one, as far as that is known."""
        state = self._state
        return state is not None and state.current_batch + 1 == state.num_train_batches

    @property
    def train_dataloader(self) -> Any:
        """The training loader, or several, as they were given or made; None outside of a fit."""
        return None if self._data is None else self._data.train_loader

    @property
    def val_dataloaders(self) -> Any:
        """The loaders of a validation, as they were given or made; None where none runs."""
        return self._loaders.get("validate") if self._data is None else self._data.val_loader

    @property
    def test_dataloaders(self) -> Any:
        """The same of a test."""
        return self._loaders.get("test")

    @property
    def predict_dataloaders(self) -> Any:
        """The same of a prediction."""
        return self._loaders.get("predict")

    # Metrics ----------------------------------------------------------------------------------------

    @property
    def callback_metrics(self) -> Mapping[str, float]:
        """The latest value of everything that was logged; waits for the device."""
        return self._state.metrics.latest() if self._state is not None else self._seen.latest

    @property
    def logged_metrics(self) -> Mapping[str, float]:
        """Metrics that loggers get; waits for the device."""
        return self._state.metrics.logged() if self._state is not None else self._seen.logged

    @property
    def progress_bar_metrics(self) -> Mapping[str, float]:
        """Metrics logged with `prog_bar`; waits for the device."""
        return self._state.metrics.on_bar() if self._state is not None else self._seen.on_bar

    def progress_metrics(self) -> Mapping[str, float]:
        """See `progress_bar_metrics`."""
        return self.progress_bar_metrics

    # Folders and callbacks --------------------------------------------------------------------------

    @property
    def log_dir(self) -> str | None:
        """The run's folder, equal on all ranks; None where nothing is written."""
        return self.run_dir

    @property
    def default_root_dir(self) -> str:
        """Where runs/ is, absolute."""
        return os.path.abspath(self.settings.default_root_dir or ".")

    @property
    def checkpoint_callbacks(self) -> list[Callback]:
        """Those of class `ModelCheckpoint`."""
        from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint

        return [callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)]

    @property
    def checkpoint_callback(self) -> Callback | None:
        """The first of them."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Callback]:
        """Those of class `EarlyStopping`."""
        from stratagem_trainer.callbacks.early_stopping import EarlyStopping

        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def early_stopping_callback(self) -> Callback | None:
        """The first of them."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> Callback | None:
        """The progress bar, where there is one."""
        from stratagem_trainer.callbacks.progress import ProgressBar

        return next((each for each in self.callbacks if isinstance(each, ProgressBar)), None)
