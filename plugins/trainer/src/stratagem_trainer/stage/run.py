"""What each rank runs for `fit`, `validate`, `test` and `predict`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from stratagem_launch import SlurmJob

from stratagem.errors import UsageError
from stratagem.sdk.loops import announce_data
from stratagem.sdk.loops import seed_everything as seed_generators
from stratagem_trainer.data.combined_loader import sample_of_any
from stratagem_trainer.data.evaluation import EvalLoader, eval_loaders
from stratagem_trainer.data.fit_data import FitData
from stratagem_trainer.data.sources import LoaderSource, make_datamodule
from stratagem_trainer.loggers.base import end
from stratagem_trainer.loggers.model_registry import register
from stratagem_trainer.loops import evaluate as evaluation
from stratagem_trainer.loops.boundary import Boundary, StopNow
from stratagem_trainer.loops.train import FitLoop
from stratagem_trainer.module.hyperparameters import logged_together
from stratagem_trainer.profilers.instrument import end_profile
from stratagem_trainer.saving import resume
from stratagem_trainer.saving.auto_resume import AutoResume
from stratagem_trainer.saving.find_checkpoint import checkpoint_to_go_on_from, job_of, note_job
from stratagem_trainer.saving.run_dir import locked
from stratagem_trainer.stage.batch_norm import as_before
from stratagem_trainer.stage.build import (
    begin_stage,
    construct_module,
    describe,
    make_loggers,
    prepare_module,
    tear_down,
)
from stratagem_trainer.stage.collect_results import save_results
from stratagem_trainer.stage.explain_error import explain
from stratagem_trainer.stage.preemption import (
    break_off,
    heartbeat,
    remove_preempted,
    save_and_stop,
    stop_watch,
)
from stratagem_trainer.stage.request import StageRequest, StageResult
from stratagem_trainer.stage.seeding import worker_seed
from stratagem_trainer.stage.torch_settings import torch_settings

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.data.data_module import DataModule
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.stage.state import StageState
    from stratagem_trainer.view import TrainerView


def run_stage(runtime: Runtime, trainer: TrainerView, request: StageRequest) -> StageResult:
    """Run a stage in this rank. Collective."""
    seed = worker_seed(runtime, trainer.given_seed)
    if seed is not None and runtime.config.seed is None:
        seed_generators(seed)
    module = construct_module(runtime, request.module)
    attempts = AutoResume(runtime) if request.stage == "fit" else None
    run_dir, made = trainer.run_dir, None
    if attempts is not None:
        chosen = attempts.run_dir or runtime.config.run_dir
        if chosen is None and runtime.is_main:
            chosen = made = _new_run_dir(module, trainer.settings.default_root_dir)
        run_dir = attempts.begin(str(runtime.broadcast(chosen)))
    loggers = make_loggers(trainer.given_loggers, request.stage) if runtime.is_main else []
    module._trainer = trainer
    trainer.enter(runtime, run_dir, module, request.ckpt_path)
    datamodule: DataModule | None = None
    try:
        with torch_settings(trainer.settings):
            datamodule = make_datamodule(trainer, request.datamodule)
            source = LoaderSource(module, datamodule, request.loader, request.val_loader)
            if attempts is not None:
                return _fit(runtime, trainer, source, request, attempts, loggers)
            return _evaluate(runtime, trainer, source, request, loggers)
    except BaseException as error:
        explain(error)
        state = trainer.current_stage.live
        if state is not None:
            if isinstance(error, UsageError):
                error.exit_code = 1  # the run has started, and may have written files
            state.hooks("on_exception", error)
        elif made is not None:
            _remove_unused(made)
        if datamodule is not None:
            datamodule.on_exception(error)
        _close(state, loggers, failed=True)
        raise
    finally:
        if trainer.profiler.is_active and trainer.current_stage.live is not None:
            end_profile(trainer.profiler, trainer.state)
        trainer.leave()
        as_before(module)
        module._trainer = None
        if datamodule is not None:
            datamodule._trainer = None


def _fit(
    runtime: Runtime,
    trainer: TrainerView,
    source: LoaderSource,
    request: StageRequest,
    attempts: AutoResume,
    loggers: list[Logger],
) -> StageResult:
    settings, run_dir, module = trainer.settings, attempts.run_dir, source.module
    hooks = prepare_module(runtime, trainer, module, "fit", source.datamodule)
    reader = checkpoint_to_go_on_from(trainer, attempts, request.ckpt_path)
    if reader is not None and settings.reload_dataloaders_every_n_epochs:
        # The module or data module may make loaders that depend on the epoch.
        trainer.current_stage.begin_at(resume.epoch_of(reader))
    user_state = None if reader is None else resume.UserState(hooks, source.datamodule, reader)
    if user_state is not None:
        settings.policy.before_restore(user_state)
    seed = settings.policy.data_seed(runtime.config.seed, trainer.given_seed)
    data = FitData(runtime, settings, source, trainer.current_epoch, seed)
    trainer.current_stage.fit_data = data
    if runtime.is_main:
        announce_data(data.train.description, data.val_description)
    state = begin_stage(
        settings,
        runtime,
        module,
        hooks,
        "fit",
        run_dir,
        loggers,
        data.train.batch_size,
        sample_of_any(data.train_loader),
        data.micro_batches,
    )
    state.running, state.datamodule, state.train_data = "train", source.datamodule, data
    _count_batches(state, data.val, "validate")
    data_state, restore_generators = None, None
    if reader is None and settings.initial_weights is not None:
        resume.begin_with(state, settings.initial_weights)
    if reader is not None and user_state is not None:
        data_state, restore_generators = resume.restore(state, reader, data.train, user_state)

    def validate() -> list[dict[str, float]]:
        return evaluation.evaluate(state, data.val, "validate")

    def save(path: str, weights_only: bool = False) -> None:
        runtime.session.checkpointer.wait()
        if weights_only:
            resume.save_weights(state, path)
            return
        attempts.saving(path, state.progress.step)
        resume.save(state, data.train, path)

    with (
        locked(runtime, run_dir),
        heartbeat(runtime, settings, run_dir) as beat,
        stop_watch(runtime, settings, request.began) as watch,
    ):
        if runtime.is_main and run_dir is not None:
            note_job(run_dir)
        params = logged_together(module, source.datamodule) if settings.enable_autolog_hparams else {}
        if run_dir is not None:
            for logger in loggers:
                logger.open(run_dir, describe(trainer, module), state.progress.step)
                if params:
                    logger.log_hyperparams(params)
                logger.log_graph(module)
        state.boundary = Boundary(watch, beat, runtime.collectives)
        loop = FitLoop(state, data, validate if data.val else None, data_state, restore_generators)
        state.save = save
        trainer.go_live(state)
        hooks("on_start", "fit")
        hooks("on_fit_start")
        if data.val and reader is None:
            evaluation.sanity_check(state, data.val)
        if settings.limit("train") != 0:
            hooks("on_train_start")
            try:
                loop.run()
            except StopNow:
                save_and_stop(trainer, state, watch, save)
            hooks("on_train_end")
            state.metrics.end_epoch(state.progress.step, state.progress.epoch)
        state.metrics.flush()
        hooks("on_fit_end")
        hooks("on_end", "fit")
        runtime.session.checkpointer.wait()
        state.boundary = None
        if any(getattr(callback, "last_model_path", "") for callback in trainer.checkpoint_callbacks):
            remove_preempted(trainer)
        result = _result(state, trainer, [state.metrics.latest()])
        if request.destination is not None and not runtime.in_launching_process:
            result = replace(
                result, not_copied_back=save_results(runtime, state.prepared, request.destination)
            )
        tear_down(hooks, source.datamodule, "fit")
        register(settings.model_registry, loggers, trainer.checkpoint_callback)
        _close(state, loggers)
    return result


def _evaluate(
    runtime: Runtime,
    trainer: TrainerView,
    source: LoaderSource,
    request: StageRequest,
    loggers: list[Logger],
) -> StageResult:
    stage, module, policy = request.stage, source.module, trainer.settings.policy
    hooks = prepare_module(runtime, trainer, module, stage, source.datamodule)
    reader = None
    if request.ckpt_path is not None:
        reader = runtime.session.open_checkpoint(request.ckpt_path, trainer.settings.verify_checkpoints)
        policy.restore_for_evaluation(resume.UserState(hooks, source.datamodule, reader))
    loader = source.of(stage)
    seed = policy.data_seed(runtime.config.seed, trainer.given_seed)
    data = eval_loaders(runtime, trainer.settings, loader, stage, seed)
    state = begin_stage(
        trainer.settings,
        runtime,
        module,
        hooks,
        stage,
        None,
        loggers,
        data[0].batch_size,
        sample_of_any(loader),
    )
    state.progress = replace(trainer.current_stage.last.progress)
    _open_for_evaluation(loggers, trainer, module)
    state.datamodule = source.datamodule
    trainer.current_stage.eval_loaders = {stage: loader}
    _count_batches(state, data, stage)
    state.save = partial(resume.save, state, None)
    if reader is not None:
        resume.load_weights(state, reader)
    trainer.go_live(state)
    hooks("on_start", stage)
    predictions: list[Any] | None = None
    metrics: list[dict[str, float]] = []
    with stop_watch(runtime, trainer.settings, request.began) as watch:
        state.boundary = Boundary(watch, None, runtime.collectives)
        try:
            if trainer.settings.limit(stage) == 0:
                predictions = [] if stage == "predict" else None
            elif stage == "predict":
                predictions = evaluation.predict(state, data, request.return_predictions)
            else:
                metrics = evaluation.evaluate(state, data, stage)
        except StopNow as stop:
            break_off(runtime, stage, watch, stop.predictions)
        state.boundary = None
    hooks("on_end", stage)
    tear_down(hooks, source.datamodule, stage)
    _close(state, loggers)
    return _result(state, trainer, metrics, predictions)


def _open_for_evaluation(loggers: list[Logger], trainer: TrainerView, module: Any) -> None:
    """Open the loggers in the run folder of the last fit, or else in a new one if a logger has no folder itself."""
    folder = trainer.run_dir
    if folder is None and any(logger.save_dir is None for logger in loggers):
        folder = _new_run_dir(module, trainer.settings.default_root_dir)
    for logger in loggers:
        logger.open(folder or ".", describe(trainer, module))


def _count_batches(state: StageState, loaders: Sequence[EvalLoader], stage: str) -> None:
    if loaders:
        state.eval_batches[stage] = [evaluation.num_batches(state, data, stage) for data in loaders]
        state.num_eval_batches = evaluation.total_batches(state, loaders, stage)


def _new_run_dir(module: Any, root: str | None) -> str:
    """Make a new folder for a run. A Slurm job that was requeued gets its earlier folder."""
    job = SlurmJob.of(os.environ)
    name = time.strftime("%Y%m%d-%H%M%S") if job is None else f"slurm-{job.job_id}"
    base = os.path.abspath(f"{root or '.'}/runs/{name}-{type(module).__qualname__}")
    if job is not None and job.restarts and job_of(base) == job.job_id:
        return base
    # Two runs may begin in the same second. A run takes the first folder that it can make.
    return next(path for n in count() if _is_made(path := f"{base}-{n}" if n else base))


def _remove_unused(folder: str) -> None:
    """Remove a run's folder if it is empty, and then the parent folder if it is empty too."""
    with suppress(OSError):
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))


def _is_made(folder: str) -> bool:
    try:
        os.makedirs(folder)
    except FileExistsError:
        return False
    return True


def _result(
    state: StageState,
    trainer: TrainerView,
    metrics: list[dict[str, float]],
    predictions: list[Any] | None = None,
) -> StageResult:
    return StageResult(
        metrics=metrics,
        last=trainer.current_stage.result(trainer.run_dir),
        in_launching_process=state.runtime.in_launching_process,
        callbacks={callback.state_key: callback.state_dict() for callback in state.hooks.callbacks},
        loggers=[logger.state_dict() for logger in state.loggers],
        predictions=predictions,
    )


def _close(state: StageState | None, loggers: list[Logger], failed: bool = False) -> None:
    if state is not None:
        state.metrics.flush()
    for logger in loggers:
        end(logger, failed)
