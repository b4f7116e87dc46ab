"""`Trainer`: trains and evaluates a `Module` under any strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from inspect import signature
from typing import Any, Literal

from stratagem import RunConfig, Task
from stratagem.errors import ConfigError
from stratagem.sdk.loops import announce, announce_by_value, launch
from stratagem.sdk.runs import assemble, run_config
from stratagem.sdk.selection import Devices, renamed_selection
from stratagem_trainer.arguments import refuse_unknown, refuse_with_barebones
from stratagem_trainer.bringing_back import (
    SEVERAL_NODES,
    bring_back,
    destination,
    refuse_untrained,
    say_untrained,
)
from stratagem_trainer.building import needed_features, refuse_callbacks, refuse_equal_keys
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.choices import (
    best_where_there_is_one,
    chosen_checkpoint,
    last_module,
    told_apart,
)
from stratagem_trainer.fast_dev_run import fast, without_files
from stratagem_trainer.hook_names import refuse_uncalled_hooks
from stratagem_trainer.loggers.base import Logger
from stratagem_trainer.loggers.named import checked_loggers
from stratagem_trainer.module import Module
from stratagem_trainer.profilers.base import Profiler
from stratagem_trainer.profilers.instrument import make_profiler
from stratagem_trainer.registry import refuse_without_registry
from stratagem_trainer.run_folder import absolute_run_dir, refuse_unusable
from stratagem_trainer.seeding import latest_seed
from stratagem_trainer.seen import Seen
from stratagem_trainer.settings import Limit, TrainerSettings
from stratagem_trainer.stage import StageRequest, StageResult, run_stage
from stratagem_trainer.view import TrainerView

PRELOAD = (__name__,)
"""Modules that a trainer's workers need."""


class Trainer(TrainerView):
    """Trains and evaluates a `Module`: docs/guides/trainer.md.

    Args:
        accelerator: a name as "cuda", or "auto".
        devices: how many, or which: docs/guides/devices.md.
        num_nodes: machines taking part, or the minimum and the maximum as "1:4".
        strategy: a name as "ddp", or a strategy object.
        precision: a name as "bf16-mixed".
        plugins: objects with hook implementations, or names of installed extensions.
        callbacks: run at named moments, beside the default progress bar and checkpoints.
        logger: True or None for a metrics.csv in the run's folder, False for none, names as "wandb", or loggers of
            your own.
        profiler: "simple", "advanced", "pytorch" or a profiler: docs/guides/profiling.md.
        max_epochs: stop after so many; 1 where neither epochs nor steps are limited; -1 for no limit.
        max_steps: stop after so many optimizer steps; None or -1 for no limit.
        min_epochs: what wants to stop before so many epochs isn't heard.
        min_steps: the same for optimizer steps.
        max_time: stop after the step in which it is over: "DD:HH:MM:SS", a timedelta, or {"hours": 2}; ranks agree
            on it after each step.
        num_sanity_val_steps: so many batches of the validation are tried before a fit; -1 for all of them; None for
            none.
        fast_dev_run: try a fit, or another command, with one batch (or so many) of everything, without logger,
            checkpoints and early stopping.
        accumulate_grad_batches: micro-batches per optimizer step.
        gradient_clip_val: limit gradients before each step; None or 0 for no limit.
        gradient_clip_algorithm: "norm" or "value".
        val_check_interval: validate every so many batches, or after each such fraction of an epoch;
            None: at the end of epochs.
        check_val_every_n_epoch: validate at the end of every so many epochs; None counts the batches of
            val_check_interval over epochs.
        limit_train_batches: at most so many batches per rank and epoch, or such a fraction of them; 0 trains nothing.
        limit_val_batches: the same for validation.
        limit_test_batches: the same for test.
        limit_predict_batches: the same for predict.
        overfit_batches: so many batches, or such a fraction of them, of training and validation alike, in order and
            the same in every epoch; 0 for all.
        log_every_n_steps: a row of metrics every so many optimizer steps; 50 where None, never where 0.
        enable_progress_bar: show one on rank 0.
        enable_model_summary: print the module's layers when a fit starts.
        enable_checkpointing: keep the best and the last checkpoint.
        use_distributed_sampler: share data with a default sampler among ranks: docs/guides/data.md.
        terminate_on_nan: end the run with an error, before the step, when a loss isn't finite, or after it when a
            parameter isn't; this waits for the device in every step. Otherwise there is a warning.
        verify_checkpoints: compare what is read of a `ckpt_path` with its checksums; without, damage goes unseen.
        detect_anomaly: let autograd name the forward of a backward that fails or makes NaN; slow.
        deterministic: let torch use deterministic algorithms alone, and raise ("warn": warn) where there is none.
        benchmark: let cuDNN try which algorithm is fastest; None leaves torch's setting.
        inference_mode: evaluate under `torch.inference_mode` rather than `torch.no_grad`.
        seed: for every generator on every rank.
        run_dir: where metrics and checkpoints go, of one run at a time; runs/<time>-<class> when None.
        default_root_dir: where that runs/ is; the current folder when None.
        sync_batchnorm: normalize by the batches of all ranks in BatchNorm layers; exchanges their statistics.
        reload_dataloaders_every_n_epochs: call train_dataloader and val_dataloader again every so many epochs.
        barebones: the loop alone, to measure it: no logger, checkpoints, progress bar, summary, sanity check, and
            nothing that is logged.
        enable_autolog_hparams: hand the module's hyperparameters to the loggers when a fit starts.
        model_registry: name under which a logger that has a registry keeps the best checkpoint.
        further: other fields of `RunConfig`, by name.

    Raises:
        ConfigError: a setting that doesn't exist, or can't be.
    """

    def __init__(
        self,
        accelerator: str = "auto",
        devices: Devices = "auto",
        num_nodes: int | str = 1,
        strategy: Any = "auto",
        precision: Any = "32-true",
        plugins: Any = (),
        callbacks: Callback | Sequence[Callback] | None = None,
        logger: bool | str | Logger | Sequence[Logger | str] | None = None,
        profiler: str | Profiler | None = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        min_epochs: int | None = None,
        min_steps: int | None = None,
        max_time: str | timedelta | Mapping[str, int] | None = None,
        num_sanity_val_steps: int | None = None,
        fast_dev_run: bool | int = False,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str = "norm",
        val_check_interval: Limit = None,
        check_val_every_n_epoch: int | None = 1,
        limit_train_batches: Limit = None,
        limit_val_batches: Limit = None,
        limit_test_batches: Limit = None,
        limit_predict_batches: Limit = None,
        overfit_batches: int | float = 0,
        log_every_n_steps: int | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        enable_checkpointing: bool | None = None,
        use_distributed_sampler: bool = True,
        terminate_on_nan: bool = False,
        verify_checkpoints: bool = True,
        detect_anomaly: bool = False,
        deterministic: bool | Literal["warn"] = False,
        benchmark: bool | None = None,
        inference_mode: bool = False,
        seed: int | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        default_root_dir: str | os.PathLike[str] | None = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        barebones: bool = False,
        enable_autolog_hparams: bool = True,
        model_registry: str | None = None,
        **further: Any,
    ) -> None:
        default_root_dir = _path(default_root_dir)
        if barebones is True:
            refuse_with_barebones(
                {
                    "logger": logger,
                    "enable_progress_bar": enable_progress_bar,
                    "enable_checkpointing": enable_checkpointing,
                    "enable_model_summary": enable_model_summary,
                    "profiler": profiler,
                    "num_sanity_val_steps": num_sanity_val_steps,
                    "fast_dev_run": fast_dev_run,
                    "detect_anomaly": detect_anomaly,
                    "log_every_n_steps": log_every_n_steps,
                }
            )
            logger = enable_progress_bar = enable_model_summary = enable_checkpointing = False
            log_every_n_steps = 0
        names = {field.name for field in fields(TrainerSettings)}
        settings = TrainerSettings(**{k: v for k, v in locals().items() if k in names})
        folder = absolute_run_dir(run_dir) if run_dir is not None else None
        precision = "32-true" if precision is None else precision
        plugins = plugins if isinstance(plugins, (list, tuple)) else () if plugins is None else (plugins,)
        renamed_selection(accelerator=accelerator, plugins=plugins, **further)
        refuse_unknown(further, (*_OWN, *(field.name for field in fields(RunConfig))))
        config = run_config(
            "Trainer",
            plugins,
            strategy=strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            seed=seed,
            run_dir=folder,
            **further,
        )
        used = _with_defaults(
            callbacks,
            enable_progress_bar is not False,
            enable_model_summary is not False,
            enable_checkpointing is not False and not fast_dev_run,
        )
        loggers = checked_loggers(logger)
        refuse_without_registry(model_registry, loggers)
        if fast_dev_run:
            settings, used, loggers = fast(settings, fast_dev_run), without_files(used), False
        super().__init__(config, settings, used, loggers)
        self.profiler = make_profiler(profiler)
        self._given: Any = None
        """The module of the last fit, or what made it, for an evaluation that is given none."""

    # Commands ---------------------------------------------------------------------------------------

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train `model`, in as many processes as the strategy wants.

        Args:
            model: a `Module`, or a picklable callable that makes one in each worker.
            train_dataloaders: training batches: a loader, or several in a list, tuple, dict or `CombinedLoader`; the
                data module's, or the module's own `train_dataloader`, when None. A `DataModule` may be passed here.
            val_dataloaders: validation batches; the data module's, or the module's own, when None.
            datamodule: a `DataModule`, or a picklable callable that makes one in each worker.
            ckpt_path: continue exactly where this checkpoint was written; "last" is the last one of the fit before.

        Where workers were processes of their own, the trained weights, the metrics and the callbacks'
        states are brought back into this process's objects: all that is in `model.state_dict()`, with the
        dtypes that training left, and which parameters require gradients. Where that can't be, as after a run on
        several nodes, there is a warning, and going on with the module needs a `ckpt_path`.
        """
        self._given = model
        with destination(model) as where:
            loader, datamodule = told_apart("fit", train_dataloaders, val_dataloaders, datamodule)
            path = chosen_checkpoint(self, "fit", ckpt_path)
            result = self._launch(
                StageRequest("fit", model, loader, val_dataloaders, datamodule, path, where)
            )
            reason = result.not_brought_back
            if where is not None and reason is None and not result.in_launching_process:
                reason = bring_back(model, where)
        if where is not None and reason is not None:
            say_untrained(model, reason)

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Run `validation_step` over each sample once.

        Args:
            model: a `Module`, or a picklable callable; when None, that of the last fit, with the best checkpoint's
                weights where that fit kept any and no `ckpt_path` is given.
            dataloaders: as for `fit`; several are read one after the other, but for a `CombinedLoader` of another
                mode.
            ckpt_path: of a checkpoint's weights, or "best" or "last" of the last fit.
            verbose: taken for the sake of other trainers' programs: this one prints nothing.
            datamodule: as for `fit`.

        Returns:
            The metrics, one dict for each loader.
        """
        return self._evaluate("validate", model, dataloaders, ckpt_path, datamodule).metrics

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Run `test_step` over each sample once, and return the metrics, one dict for each loader; see `validate`."""
        return self._evaluate("test", model, dataloaders, ckpt_path, datamodule).metrics

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> list[Any]:
        """Return `predict_step` of all samples, in the order of the data, on the CPU.

        Args:
            model: as for `validate`.
            dataloaders: as for `validate`.
            datamodule: as for `fit`.
            return_predictions: False returns none, where callbacks write them; nothing is gathered then.
            ckpt_path: as for `validate`.

        Returns:
            A list of batches' predictions; of several loaders, a list of them for each.
        """
        returns = return_predictions is not False
        return self._evaluate("predict", model, dataloaders, ckpt_path, datamodule, returns).predictions or []

    def _evaluate(
        self, stage: str, model: Any, loaders: Any, ckpt_path: Any, datamodule: Any, returns: bool = True
    ) -> StageResult:
        loader, datamodule = told_apart(stage, loaders, None, datamodule)
        if model is None:
            model = last_module(self._given, stage)
            ckpt_path = best_where_there_is_one(self, ckpt_path)
        path = chosen_checkpoint(self, stage, ckpt_path)
        return self._launch(
            StageRequest(stage, model, loader, None, datamodule, path, return_predictions=returns)
        )

    def _launch(self, request: StageRequest) -> StageResult:
        if request.ckpt_path is None:
            refuse_untrained(request.module, request.stage)
        for callback in self.callbacks:
            callback.before_launch(self, request.module, request.loader, request.stage)
        run = assemble(self.config)
        self.given_seed = latest_seed()
        if request.stage == "fit":
            known = request.module if isinstance(request.module, Module) else None
            run.require(needed_features(self.settings, known))
            refuse_callbacks(run, self.callbacks)
            if run.environment.global_rank == 0:
                root = self.settings.default_root_dir
                refuse_unusable(self.config.run_dir, root, is_only_node=self.config.num_nodes in (1, "1"))
        if run.environment.global_rank == 0:
            announce(run)
        self._seen = replace(self._seen, stage=request.stage, status="interrupted")
        result: StageResult | None = launch(
            run, Task(run_stage, (self, request), preload=PRELOAD, notice=announce_by_value)
        )
        self.model, self.ckpt_path = request.module, request.ckpt_path
        self.datamodule = None if callable(request.datamodule) else request.datamodule
        if result is None:  # not the node of rank 0
            return StageResult([], Seen(), False, not_brought_back=SEVERAL_NODES)
        self._seen, self.run_dir = result.seen, result.seen.run_dir
        for callback in self.callbacks:
            if callback.state_key in result.callbacks:
                callback.load_state_dict(dict(result.callbacks[callback.state_key]))
        return result


def _with_defaults(
    callbacks: Callback | Sequence[Callback] | None, progress_bar: bool, summary: bool, checkpointing: bool
) -> list[Callback]:
    from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem_trainer.callbacks.model_summary import ModelSummary
    from stratagem_trainer.callbacks.progress import ProgressBar

    given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
    for callback in given:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks has a {type(callback).__name__}: derive it from stratagem.Callback")
        refuse_uncalled_hooks(callback)
    if progress_bar and not any(isinstance(callback, ProgressBar) for callback in given):
        given.append(ProgressBar())
    if summary and not any(isinstance(callback, ModelSummary) for callback in given):
        given.append(ModelSummary())
    if checkpointing and not any(isinstance(callback, ModelCheckpoint) for callback in given):
        given.append(ModelCheckpoint())
    refuse_equal_keys(given)
    return given


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


_OWN = tuple(name for name in signature(Trainer).parameters if name != "further")
"""The trainer's own arguments."""
