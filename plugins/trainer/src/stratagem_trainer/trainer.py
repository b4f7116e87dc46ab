"""`Trainer`: trains and evaluates a `Module` with any strategy."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from stratagem_checkpoint import InitialWeights
from stratagem_facade.former_settings import renamed_selection
from stratagem_launch import STOP_SIGNALS, Preempted

from stratagem import RunConfig, Task
from stratagem.sdk.loops import announce, announce_by_value, launch
from stratagem.sdk.runs import assemble, run_config
from stratagem.sdk.selection import Devices, path_text
from stratagem_trainer.arguments import refuse_unknown, refuse_with_barebones
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.selection import refuse_callbacks, with_defaults
from stratagem_trainer.fast_dev_run import fast, without_files
from stratagem_trainer.loggers.base import Logger
from stratagem_trainer.loggers.model_registry import refuse_without_registry
from stratagem_trainer.loggers.named import checked_loggers
from stratagem_trainer.module.hook_names import warns_of_hooks
from stratagem_trainer.module.module import Module
from stratagem_trainer.profilers.base import Profiler
from stratagem_trainer.profilers.instrument import make_profiler
from stratagem_trainer.saving.run_dir import absolute_run_dir, refuse_unusable
from stratagem_trainer.settings import Limit, TrainerSettings
from stratagem_trainer.stage.build import has_its_layers, needed_features
from stratagem_trainer.stage.collect_results import (
    SEVERAL_NODES,
    destination,
    load_results,
    refuse_untrained,
    say_untrained,
)
from stratagem_trainer.stage.inputs import (
    best_where_there_is_one,
    chosen_checkpoint,
    last_module,
    split_loaders_and_datamodule,
)
from stratagem_trainer.stage.last_stage import LastStage
from stratagem_trainer.stage.preemption import requeue
from stratagem_trainer.stage.request import StageRequest, StageResult
from stratagem_trainer.stage.run import run_stage
from stratagem_trainer.stage.seeding import latest_seed
from stratagem_trainer.view import TrainerView

PRELOAD = ("stratagem_trainer.trainer",)
"""Modules that the workers of a trainer need."""

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem import Accelerator, Precision, Strategy
    from stratagem.sdk.runs import RunOptions


class Trainer(TrainerView):
    """Trains and evaluates a `Module`: docs/guides/trainer.md.

    Args:
        accelerator: a name such as "cuda", or "auto".
        devices: how many, or which: docs/guides/devices.md.
        num_nodes: number of machines, or a minimum and a maximum such as "1:4".
        strategy: a name such as "ddp", or a strategy object.
        precision: a name such as "bf16-mixed".
        plugins: objects with hook implementations, or names of installed extensions.
        callbacks: callbacks in addition to the default progress bar, summary and checkpoints.
        logger: True or None for a metrics.csv in the run's folder, False for none, names such as "wandb", or your own
            loggers.
        profiler: "simple", "advanced", "pytorch" or a profiler: docs/guides/profiling.md.
        max_epochs: stop after this many epochs; -1 for no limit. The default is 1 if `max_steps` isn't given either.
        max_steps: stop after this many optimizer steps; None or -1 for no limit.
        min_epochs: ignore requests to stop before this many epochs.
        min_steps: ignore requests to stop before this many optimizer steps.
        max_time: stop after the step in which this time has passed: "DD:HH:MM:SS", a timedelta, or {"hours": 2}.
            Ranks agree on it after each step.
        num_sanity_val_steps: validate this many batches before a fit, to find errors early; -1 for all of them; None
            for none.
        fast_dev_run: run only one batch of each loader, or this many, without logger, checkpoints and early stopping.
        accumulate_grad_batches: number of micro-batches per optimizer step.
        global_batch_size: number of samples per optimizer step over all ranks, instead of `accumulate_grad_batches`.
            The number of micro-batches follows from it, also if a run is restarted or resumed on another number of
            ranks.
        gradient_clip_val: clip gradients before each step; None or 0 for no limit.
        gradient_clip_algorithm: "norm" or "value".
        val_check_interval: number of batches between two validations, or a fraction of an epoch; None validates at
            the end of epochs.
        check_val_every_n_epoch: validate at the end of every n-th epoch. None lets val_check_interval count batches
            across epochs.
        limit_train_batches: at most this many batches per rank and epoch, or this fraction of them; 0 trains nothing.
        limit_val_batches: the same for validation.
        limit_test_batches: the same for test.
        limit_predict_batches: the same for predict.
        overfit_batches: train and validate on this many batches, or this fraction of them, which are the same in
            every epoch; 0 for all.
        log_every_n_steps: log a row of metrics every n optimizer steps; None is 50, 0 is never.
        enable_progress_bar: show one on rank 0.
        enable_model_summary: print the module's layers when a fit starts.
        enable_checkpointing: keep the best and the last checkpoint.
        use_distributed_sampler: share data with a default sampler among ranks: docs/guides/data.md.
        terminate_on_nan: end the run with an error if a loss isn't finite, before the step, or if a parameter isn't,
            after the step. This waits for the device in every step. By default there is a warning instead.
        verify_checkpoints: compare what is read from a `ckpt_path` with its checksums. False doesn't detect damage.
        detect_anomaly: let autograd name the forward of a backward that fails or makes NaN; slow.
        deterministic: let torch use only deterministic algorithms, and raise an error if there is none; "warn" only
            warns.
        benchmark: let cuDNN search for the fastest algorithms; None leaves torch's setting.
        inference_mode: evaluate under `torch.inference_mode` instead of `torch.no_grad`. Strategies that gather
            shards always use `no_grad`, because training uses the same buffers.
        seed: seed for every generator on every rank.
        run_dir: folder for metrics and checkpoints of one run at a time; None is runs/<time>-<class>.
        default_root_dir: folder that contains runs/; None is the current folder.
        sync_batchnorm: normalize with the statistics of all ranks' batches in BatchNorm layers.
        reload_dataloaders_every_n_epochs: call train_dataloader and val_dataloader again every n epochs; 0 for never.
        barebones: run only the loop, to measure it: no logger, checkpoints, progress bar, summary or sanity check,
            and nothing is logged.
        enable_autolog_hparams: pass the module's hyperparameters to the loggers when a fit starts.
        model_registry: name under which loggers with a registry register the best checkpoint.
        initial_weights: a checkpoint from which a fit loads its initial weights, unless it resumes from another. An
            `InitialWeights` says what may differ: docs/guides/changed-models.md.
        time_limit: save and end when this time since the run's start, minus `grace_period_s`, has passed: a number of
            seconds, or as `max_time`. The process exits with 75: docs/fault-tolerance.md.
        grace_period_s: time that a save may take. A run stops this long before a time limit, and is ended this long
            after a signal.
        stop_signals: names of signals at which a fit saves and ends, such as "SIGTERM,SIGUSR1"; "" for none.
        requeue: requeue the Slurm job of the run if a time limit or SIGUSR1 has stopped it.
        step_timeout_s: end a fit in which a rank makes no step for this long, and name the rank. None leaves that to
            the timeout of the strategy's collectives. Validation batches count as steps; a save must end in time.
        further: other fields of `RunConfig`, by name.

    Raises:
        ConfigError: a setting is unknown, or has an invalid value.
    """

    def __init__(
        self,
        accelerator: str | Accelerator | None = "auto",
        devices: Devices = "auto",
        num_nodes: int | str = 1,
        strategy: str | Strategy = "auto",
        precision: str | int | Precision | None = "32-true",
        plugins: object = (),
        callbacks: Callback | Sequence[Callback] | None = None,
        logger: bool | str | Logger | Sequence[Logger | str] | None = None,
        profiler: Literal["simple", "advanced", "pytorch"] | Profiler | None = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        min_epochs: int | None = None,
        min_steps: int | None = None,
        max_time: str | timedelta | Mapping[str, int] | None = None,
        num_sanity_val_steps: int | None = None,
        fast_dev_run: bool | int = False,
        accumulate_grad_batches: int = 1,
        global_batch_size: int | None = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
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
        initial_weights: InitialWeights | str | None = None,
        time_limit: str | float | timedelta | Mapping[str, int] | None = None,
        grace_period_s: float = 30.0,
        stop_signals: str | Sequence[str] = STOP_SIGNALS,
        requeue: bool = True,
        step_timeout_s: float | None = None,
        **further: Unpack[RunOptions],
    ) -> None:
        if default_root_dir is not None:
            default_root_dir = path_text("default_root_dir", default_root_dir)
        if initial_weights is not None and not isinstance(initial_weights, InitialWeights):
            initial_weights = InitialWeights(path_text("initial_weights", initial_weights))
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
        renamed_selection(**further)  # before `refuse_unknown`, which doesn't know them
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
        used = with_defaults(
            callbacks,
            enable_progress_bar is not False,
            enable_model_summary is not False,
            enable_checkpointing is not False and not fast_dev_run,
            warns_of_hooks(type(self)),
        )
        loggers = checked_loggers(logger)
        refuse_without_registry(model_registry, loggers)
        if fast_dev_run:
            settings, used, loggers = fast(settings, fast_dev_run), without_files(used), False
        super().__init__(config, settings, used, loggers)
        self._given: Any = None
        """The module of the last fit, or the callable that makes it, for evaluations without a model."""
        self.profiler = make_profiler(profiler)

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train `model`, in as many processes as the strategy needs.

        Args:
            model: a `Module`, or a picklable callable that makes one in each worker.
            train_dataloaders: training batches: a loader, or several in a list, tuple, dict or `CombinedLoader`. None
                uses the data module's loaders, or else the module's own `train_dataloader`. A `DataModule` may be
                passed here.
            val_dataloaders: validation batches. None uses the data module's loaders, or else the module's own.
            datamodule: a `DataModule`, or a picklable callable that makes one in each worker.
            ckpt_path: resume exactly where this checkpoint was written. "last" is the last one of the previous fit,
                "auto" the newest one in `run_dir`, if there is one.

        A fit that is stopped by a signal, by `time_limit` or by the end of its Slurm job saves a checkpoint, and
        raises `SystemExit(75)`.

        If workers were separate processes, the trained weights, the metrics and the callbacks' states are copied back
        into this process's objects: everything in `model.state_dict()`, with the dtypes after training, and which
        parameters require gradients. If that isn't possible, as after a run on several nodes, there is a warning.
        Using the module again then needs a `ckpt_path`.
        """
        self._given = model
        with destination(model) as where:
            loader, datamodule = split_loaders_and_datamodule(
                "fit", train_dataloaders, val_dataloaders, datamodule
            )
            path = chosen_checkpoint(self, "fit", ckpt_path)
            result = self._launch(
                StageRequest("fit", model, loader, val_dataloaders, datamodule, path, where)
            )
            reason = result.not_copied_back
            if where is not None and reason is None and not result.in_launching_process:
                reason = load_results(model, where)
        if where is not None and reason is not None:
            say_untrained(model, reason)
        self._after_launch("fit")

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Run `validation_step` on each sample once.

        Args:
            model: a `Module`, or a picklable callable that makes one. None is the module of the last fit, with the
                weights of its best checkpoint if there is one and no `ckpt_path` is given.
            dataloaders: as for `fit`; several are read one after the other, unless a `CombinedLoader` has another
                mode.
            ckpt_path: checkpoint whose weights to evaluate: a path, or "best" or "last" of the last fit.
            verbose: accepted for programs of other trainers, and ignored: nothing is printed.
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
        """Run `test_step` on each sample once, and return the metrics, one dict for each loader; see `validate`."""
        return self._evaluate("test", model, dataloaders, ckpt_path, datamodule).metrics

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> list[Any]:
        """Run `predict_step` on all samples, and return the predictions on the CPU, in the order of the data.

        Args:
            model: as for `validate`.
            dataloaders: as for `validate`.
            datamodule: as for `fit`.
            return_predictions: False returns none, and gathers none, for callbacks that write them.
            ckpt_path: as for `validate`.

        Returns:
            A list of the batches' predictions; for several loaders, one list for each.

        Raises:
            SystemExit: 75; the run was stopped. It is a `stratagem_launch.Preempted`. Its `predictions` are those so
                far, one list for each loader.
        """
        returns = return_predictions is not False
        return self._evaluate("predict", model, dataloaders, ckpt_path, datamodule, returns).predictions or []

    def _evaluate(
        self, stage: str, model: Any, loaders: Any, ckpt_path: Any, datamodule: Any, returns: bool = True
    ) -> StageResult:
        loader, datamodule = split_loaders_and_datamodule(stage, loaders, None, datamodule)
        if model is None:
            model = last_module(self._given, stage)
            ckpt_path = best_where_there_is_one(self, ckpt_path)
        path = chosen_checkpoint(self, stage, ckpt_path)
        result = self._launch(
            StageRequest(stage, model, loader, None, datamodule, path, return_predictions=returns)
        )
        self._after_launch(stage)
        return result

    def _after_launch(self, stage: str) -> None:
        for callback in self.callbacks:
            callback.after_launch(self, self.model, stage)

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
            if known is not None and has_its_layers(known):
                run.strategy.check_module(known, run)
            if run.environment.global_rank == 0:
                root = self.settings.default_root_dir
                refuse_unusable(self.config.run_dir, root, is_only_node=self.config.num_nodes in (1, "1"))
        if run.environment.global_rank == 0:
            announce(run)
        stage = self.current_stage
        stage.last = replace(stage.last, stage=request.stage, status="interrupted")
        request = replace(request, began=time.time())
        task = Task(run_stage, (self, request), preload=PRELOAD, notice=announce_by_value)
        try:
            result: StageResult | None = launch(run, task)
        except Preempted as preempted:
            requeue(preempted, self.settings)
            raise
        self.model, self.ckpt_path = request.module, request.ckpt_path
        self.datamodule = None if callable(request.datamodule) else request.datamodule
        if result is None:  # rank 0 ran on another node
            return StageResult([], LastStage(), False, not_copied_back=SEVERAL_NODES)
        stage.last, self.run_dir = result.last, result.last.run_dir
        for callback in self.callbacks:
            if callback.state_key in result.callbacks:
                callback.load_state_dict(dict(result.callbacks[callback.state_key]))
        if not isinstance(self.given_loggers, bool) and not result.in_launching_process:
            for logger, state in zip(self.given_loggers, result.loggers):
                logger.load_state_dict(state)
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_given": None}


_OWN = tuple(name for name in signature(Trainer).parameters if name != "further")
"""Names of the trainer's own arguments."""
