"""`Trainer`: trains and evaluates a `Module` under any strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from inspect import signature
from typing import Any, Literal

from stratagem_checkpoint import InitialWeights
from stratagem_facade.former_settings import renamed_selection
from stratagem_launch import STOP_SIGNALS

from stratagem import RunConfig
from stratagem.sdk.runs import run_config
from stratagem.sdk.selection import Devices, path_text
from stratagem_trainer.arguments import refuse_unknown, refuse_with_barebones
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.selection import with_defaults
from stratagem_trainer.fast_dev_run import fast, without_files
from stratagem_trainer.loggers.base import Logger
from stratagem_trainer.loggers.model_registry import refuse_without_registry
from stratagem_trainer.loggers.named import checked_loggers
from stratagem_trainer.module.hook_names import warns_of_hooks
from stratagem_trainer.profilers.base import Profiler
from stratagem_trainer.profilers.instrument import make_profiler
from stratagem_trainer.saving.run_dir import absolute_run_dir
from stratagem_trainer.settings import Limit, TrainerSettings
from stratagem_trainer.trainer_commands import TrainerCommands


class Trainer(TrainerCommands):
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
        global_batch_size: samples per optimizer step over all ranks, instead: as many micro-batches are accumulated
            as that takes, on however many ranks a run is started, restarted or resumed.
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
        inference_mode: evaluate under `torch.inference_mode` rather than `torch.no_grad`; with `no_grad` all the same
            under strategies that gather shards, whose buffers training goes on to use.
        seed: for every generator on every rank.
        run_dir: where metrics and checkpoints go, of one run at a time; runs/<time>-<class> when None.
        default_root_dir: where that runs/ is; the current folder when None.
        sync_batchnorm: normalize by the batches of all ranks in BatchNorm layers; exchanges their statistics.
        reload_dataloaders_every_n_epochs: call train_dataloader and val_dataloader again every so many epochs.
        barebones: the loop alone, to measure it: no logger, checkpoints, progress bar, summary, sanity check, and
            nothing that is logged.
        enable_autolog_hparams: hand the module's hyperparameters to the loggers when a fit starts.
        model_registry: name under which a logger that has a registry keeps the best checkpoint.
        initial_weights: a checkpoint whose weights a fit begins with, where it doesn't go on from another; an
            `InitialWeights` says what may differ: docs/guides/changed-models.md.
        time_limit: save and end this long after the run's start, less `grace_period_s`; a number of seconds, or as
            `max_time`. The process exits with 75: docs/fault-tolerance.md.
        grace_period_s: how long a save may take: a run stops so long before a limit, and is ended so long after a
            signal.
        stop_signals: names of signals on which a fit saves and ends, as "SIGTERM,SIGUSR1"; "" for none.
        requeue: put the Slurm job around the run back into its queue, where a limit or SIGUSR1 has stopped the run.
        step_timeout_s: end a fit in which a rank makes no step for so long, and name it; None waits for the timeout
            of the strategy's collectives alone. Batches of a validation count as steps; a save must be over in time.
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
        global_batch_size: int | None = None,
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
        initial_weights: InitialWeights | str | None = None,
        time_limit: str | float | timedelta | Mapping[str, int] | None = None,
        grace_period_s: float = 30.0,
        stop_signals: str | Sequence[str] = STOP_SIGNALS,
        requeue: bool = True,
        step_timeout_s: float | None = None,
        **further: Any,
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
        self.profiler = make_profiler(profiler)


_OWN = tuple(name for name in signature(Trainer).parameters if name != "further")
"""The trainer's own arguments."""
