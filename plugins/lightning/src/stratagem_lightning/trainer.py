"""`Trainer` with Lightning's arguments and defaults."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import stratagem_trainer.callbacks
import torch
from stratagem_facade.former_settings import renamed_selection
from stratagem_trainer.arguments import refuse_unknown
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.loggers.base import Logger
from stratagem_trainer.profilers import Profiler
from stratagem_trainer.stage.request import StageRequest, StageResult
from stratagem_trainer.stage.state import StageState

from stratagem import Accelerator, Runtime, Strategy
from stratagem.errors import ConfigError
from stratagem_lightning.absent import MEMBERS
from stratagem_lightning.callbacks import ModelCheckpoint
from stratagem_lightning.ckpt_files import FOLDER, facts, folder_of, wants_files, write_file
from stratagem_lightning.foreign_data import ForeignData, adapted
from stratagem_lightning.loggers import default_logger
from stratagem_lightning.missing import no_member
from stratagem_lightning.module import LightningModule
from stratagem_lightning.policy import LightningPolicy
from stratagem_lightning.precision import PRECISIONS, on_cpu
from stratagem_lightning.private_methods import refuse_private
from stratagem_lightning.rank_zero import show_rank
from stratagem_lightning.registries import StrategyRegistry
from stratagem_lightning.results import without_steps
from stratagem_lightning.run_parts import take_parts
from stratagem_lightning.settings_view import SettingsView
from stratagem_lightning.states import LiveState
from stratagem_lightning.uncalled import refuse_uncalled

MAX_EPOCHS = 1000
"""Limit of a fit if no limit is given."""
SANITY_STEPS = 2

if TYPE_CHECKING:
    from typing_extensions import Unpack


class NoOptions(TypedDict):
    """No further keywords. Those that are given are refused, with the name of today's argument."""


class Trainer(SettingsView):
    """A trainer with Lightning's arguments and defaults: docs/guides/trainer.md describes them."""

    uncalled_hooks = "warn"

    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: int | str | None = None,
        logger: Logger | list[Logger] | bool | None = None,
        callbacks: list[Callback] | Callback | None = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
        deterministic: bool | Literal["warn"] | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: Profiler | str | None = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Any = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: str | os.PathLike[str] | None = None,
        enable_autolog_hparams: bool = True,
        model_registry: str | None = None,
        **further: Unpack[NoOptions],
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "__class__", "further")}
        refuse_further(further, given)
        if not isinstance(accelerator, str):
            raise ConfigError(f"accelerator is a {type(accelerator).__name__}: give its name, as 'cuda'")
        given["strategy"] = StrategyRegistry.resolved(strategy)
        given["precision"] = (
            PRECISIONS.get(precision, precision) if isinstance(precision, Hashable) else precision
        )
        others, parts = take_parts(plugins, {"precision": precision, "sync_batchnorm": sync_batchnorm})
        given.update(parts, plugins=others)
        given["gradient_clip_algorithm"] = gradient_clip_algorithm or "norm"
        given["deterministic"] = deterministic or False
        if max_epochs is None and max_steps == -1:
            given["max_epochs"] = MAX_EPOCHS if max_time is None else -1
        if not barebones:
            if num_sanity_val_steps is None:
                given["num_sanity_val_steps"] = SANITY_STEPS
            if (logger is None or logger is True) and not fast_dev_run:
                given["logger"] = default_logger(default_root_dir)
            if enable_checkpointing is not False and not fast_dev_run:
                given["callbacks"] = _with_checkpoints(callbacks)
        super().__init__(**given)
        refuse_uncalled(self.callbacks)
        loggers = self.given_loggers if isinstance(self.given_loggers, (list, tuple)) else ()
        refuse_private([self, self.profiler, *self.callbacks, *loggers])
        self.config = on_cpu(self.config)
        self.settings = replace(self.settings, policy=LightningPolicy())
        self.fast_dev_run, self.gradient_clip_algorithm = fast_dev_run, gradient_clip_algorithm

    def save_checkpoint(
        self, filepath: str | os.PathLike[str], weights_only: bool = False, storage_options: Any = None
    ) -> None:
        """Write a checkpoint to the folder `filepath`; with STRATAGEM_CKPT_FILES=1, to a file. Collective."""
        if storage_options is not None:
            raise ConfigError("save_checkpoint takes no storage_options: give an fsspec URL")
        path = os.fspath(filepath)
        if path.endswith(FOLDER) or not wants_files():  # a ModelCheckpoint writes its files itself
            super().save_checkpoint(path, weights_only)
            return
        super().save_checkpoint(path + FOLDER, weights_only)
        if self.is_global_zero:
            write = partial(write_file, os.path.abspath(path), facts(self))
            if self.current_stage.live is None:
                write()
            else:
                self.when_saved(write)

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Train a module; docs/guides/trainer.md describes the arguments."""
        super().fit(*map(adapted, args), **_adapted(kwargs))

    def validate(self, *args: Any, **kwargs: Any) -> list[dict[str, float]]:
        """Run `validation_step` over each sample once, and return the metrics, one dict for each loader."""
        metrics = super().validate(*map(adapted, args), **_adapted(kwargs))
        return [without_steps(each) for each in metrics]

    def test(self, *args: Any, **kwargs: Any) -> list[dict[str, float]]:
        """Run `test_step` over each sample once, and return the metrics, one dict for each loader."""
        metrics = super().test(*map(adapted, args), **_adapted(kwargs))
        return [without_steps(each) for each in metrics]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Return `predict_step` of all samples, in the order of the data; None with return_predictions=False."""
        given = signature(SettingsView.predict).bind(self, *args, **kwargs).arguments
        returned = super().predict(*map(adapted, args), **_adapted(kwargs))
        return None if given.get("return_predictions") is False else returned

    def enter(
        self, runtime: Runtime, run_dir: str | None, module: Any = None, ckpt_path: str | None = None
    ) -> None:
        """Begin a stage in this process, and set its rank for libraries of Lightning's family."""
        show_rank(runtime.rank)
        super().enter(runtime, run_dir, module, ckpt_path)

    def go_live(self, state: StageState) -> None:
        """Begin a stage's loops. From here on, callbacks may log, as Lightning's do."""
        super().go_live(state)
        refuse_uncalled(state.hooks.callbacks)  # includes those of configure_callbacks
        refuse_private([state.module, state.datamodule, *state.hooks.callbacks])
        for callback in state.hooks.callbacks:
            for name in ("log", "log_dict"):
                if not hasattr(type(callback), name):
                    # patch: callback logs
                    vars(callback)[name] = getattr(state.module, name)

    def leave(self) -> None:
        """End the stage in this process."""
        live = self.current_stage.live
        for callback in live.hooks.callbacks if live is not None else ():
            for name in ("log", "log_dict"):
                vars(callback).pop(name, None)
        super().leave()

    @property
    def datamodule(self) -> Any:
        """The data module of the stage that runs, or ran last."""
        data = vars(self).get("_datamodule")
        return data.inner if isinstance(data, ForeignData) else data

    @datamodule.setter
    def datamodule(self, data: Any) -> None:
        vars(self)["_datamodule"] = data

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_datamodule": None}

    def _launch(self, request: StageRequest) -> StageResult:
        refuse_private([request.module, request.datamodule])
        request = replace(request, ckpt_path=folder_of(request.ckpt_path))
        result = super()._launch(request)
        if isinstance(request.module, LightningModule):
            request.module.ran_by(self)
        return result

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0."""
        if self.is_global_zero:
            print(*args, **kwargs)

    # Values as tensors, as Lightning has them ----------------------------------------------------------

    @property
    def callback_metrics(self) -> Mapping[str, torch.Tensor]:  # type: ignore[override]  # tensors, as in Lightning
        """The latest value of everything that was logged. Waits for the device."""
        return _tensors(super().callback_metrics)

    @property
    def logged_metrics(self) -> Mapping[str, torch.Tensor]:  # type: ignore[override]  # tensors, as in Lightning
        """The latest values that were sent to loggers. Waits for the device."""
        return _tensors(super().logged_metrics)

    @property
    def state(self) -> Any:
        """State of the stage that runs, or ran last, with Lightning's `fn`, `stage`, `status` and `finished`."""
        return LiveState(super().state, self)

    @property
    def lightning_module(self) -> Any:
        """The module."""
        return self.model

    if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any attribute

        def __getattr__(self, name):
            # Called only for missing attributes.
            if name in MEMBERS["Trainer"]:
                raise AttributeError(no_member("Trainer", name))
            return super().__getattr__(name)


def _adapted(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: adapted(value) for name, value in kwargs.items()}


def refuse_further(further: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse arguments that Lightning's trainer once had, or never had.

    Raises:
        ConfigError: with the name of the argument, and what to write instead.
    """
    renamed_selection(**further)
    refuse_unknown(further, known)


def _with_checkpoints(callbacks: Any) -> list[Callback]:
    given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
    has_one = any(isinstance(each, stratagem_trainer.callbacks.ModelCheckpoint) for each in given)
    return given if has_one else [*given, ModelCheckpoint()]


def _tensors(values: Mapping[str, float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}
