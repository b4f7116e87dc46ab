"""What every rank does for `fit`, `validate`, `test` and `predict`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError, DataError, UsageError
from stratagem.sdk.loops import EvalData, TrainData, announce_data, sample_of
from stratagem.sdk.loops import seed_everything as seed_generators
from stratagem_trainer.auto_resume import AutoResume
from stratagem_trainer.bringing_back import Destination, leave
from stratagem_trainer.building import (
    begin_stage,
    construct_module,
    describe,
    first_given,
    make_loggers,
    prepare_module,
)
from stratagem_trainer.explaining import explain
from stratagem_trainer.hooks import overrides
from stratagem_trainer.loops import evaluation, resume
from stratagem_trainer.loops.fit_loop import FitLoop
from stratagem_trainer.module import Module
from stratagem_trainer.profilers.instrument import end_profile
from stratagem_trainer.progress import Progress
from stratagem_trainer.run_folder import locked
from stratagem_trainer.seeding import worker_seed
from stratagem_trainer.torch_settings import torch_settings

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.state import StageState
    from stratagem_trainer.view import TrainerView


@dataclass(frozen=True)
class StageRequest:
    """What a call of the trainer asks for; picklable if the module and the loaders are."""

    stage: str
    module: Any
    """A `Module`, or a callable without arguments that makes one in each worker."""
    loader: Iterable[Any] | None = None
    val_loader: Iterable[Any] | None = None
    ckpt_path: str | None = None
    destination: Destination | None = None
    """Where to leave the trained state for a launching process that isn't a rank itself."""


@dataclass(frozen=True)
class StageResult:
    """What rank 0 brings back."""

    metrics: dict[str, float]
    latest: dict[str, float]
    progress: Progress
    run_dir: str | None
    in_launching_process: bool
    """Whether the module that the trainer was given is the one that was used."""
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    predictions: list[Any] | None = None
    not_brought_back: str | None = None
    """Why the trained state isn't at the request's destination."""


def run_stage(runtime: Runtime, trainer: TrainerView, request: StageRequest) -> StageResult:
    """Run a stage in this rank. Collective."""
    seed = worker_seed(runtime, trainer.given_seed)
    if seed is not None and runtime.config.seed is None:
        seed_generators(seed)
    module = construct_module(runtime, request.module)
    attempts = AutoResume(runtime) if request.stage == "fit" else None
    run_dir = _agreed_run_dir(runtime, module, attempts, trainer.settings.default_root_dir)
    loggers = make_loggers(trainer.given_loggers) if runtime.is_main and request.stage == "fit" else []
    module._trainer = trainer
    trainer.enter(runtime, run_dir)
    try:
        with torch_settings(trainer.settings):
            if attempts is not None:
                return _fit(runtime, trainer, module, request, attempts, loggers)
            return _evaluate(runtime, trainer, module, request)
    except BaseException as error:
        explain(error)
        state = trainer.state if trainer.has_state else None
        if state is not None:
            if isinstance(error, UsageError):
                error.exit_code = 1  # something was started, and may have been written
            state.hooks("on_exception", error)
        _close(state, loggers, failed=True)
        raise
    finally:
        if trainer.profiler.is_active and trainer.has_state:
            end_profile(trainer.profiler, trainer.state)
        trainer.leave()
        module._trainer = None


def _fit(
    runtime: Runtime,
    trainer: TrainerView,
    module: Any,
    request: StageRequest,
    attempts: AutoResume,
    loggers: list[Logger],
) -> StageResult:
    settings, run_dir = trainer.settings, attempts.run_dir
    hooks = prepare_module(runtime, trainer, module, "fit")
    loader = first_given(request.loader, module.train_dataloader())
    if loader is None:
        raise DataError("fit needs training batches: pass train_dataloaders, or define train_dataloader")
    data = TrainData(
        loader,
        collectives=runtime.collectives.data,
        seed=runtime.config.seed or 0,
        distributed_sampler=settings.use_distributed_sampler,
    )
    val_data = _validation_data(trainer, runtime, module, request)
    if runtime.is_main:
        announce_data(data.description, val_data.description if val_data is not None else "none")
    state = begin_stage(
        settings, runtime, module, hooks, "fit", run_dir, loggers, data.batch_size, sample_of(loader)
    )
    if val_data is not None:
        state.num_eval_batches = evaluation.num_batches(state, val_data, "validate")
    state.train_data = data
    data_state, restore_generators = None, None
    reader = attempts.newest()
    if reader is None and request.ckpt_path is not None:
        reader = runtime.session.open_checkpoint(request.ckpt_path, settings.verify_checkpoints)
    if reader is not None:
        data_state, restore_generators = resume.restore(state, reader, data)

    def validate() -> dict[str, float]:
        assert val_data is not None
        return evaluation.evaluate(state, val_data, "validate")

    def save(path: str, weights_only: bool = False) -> None:
        if not weights_only:
            attempts.saving(path, state.progress.step)
        resume.save(state, data, path, weights_only)

    with locked(runtime, run_dir):
        params = module.logged_hyperparameters()
        if run_dir is not None:
            for logger in loggers:
                logger.open(run_dir, describe(trainer, module), state.progress.step)
                if params:
                    logger.log_hyperparams(params)
                logger.log_graph(module)
        loop = FitLoop(
            state, data, validate if val_data is not None else None, data_state, restore_generators
        )
        state.save = save
        trainer.go_live(state)
        hooks("on_start", "fit")
        hooks("on_fit_start")
        if val_data is not None and reader is None:
            evaluation.sanity_check(state, val_data)
        hooks("on_train_start")
        loop.run()
        hooks("on_train_end")
        state.metrics.flush()
        hooks("on_fit_end")
        hooks("on_end", "fit")
        result = _result(state, state.metrics.latest())
        if request.destination is not None and not runtime.in_launching_process:
            result = replace(result, not_brought_back=leave(runtime, state.prepared, request.destination))
        hooks("teardown", "fit")
        _close(state, loggers)
    return result


def _evaluate(runtime: Runtime, trainer: TrainerView, module: Any, request: StageRequest) -> StageResult:
    stage = request.stage
    hooks = prepare_module(runtime, trainer, module, stage)
    own = {
        "validate": module.val_dataloader,
        "test": module.test_dataloader,
        "predict": module.predict_dataloader,
    }
    loader = first_given(request.loader, own[stage]())
    if loader is None:
        raise DataError(f"{stage} needs batches: pass dataloaders, or define {own[stage].__name__}")
    data = _eval_data(trainer, runtime, loader)
    state = begin_stage(
        trainer.settings, runtime, module, hooks, stage, None, [], data.batch_size, sample_of(loader)
    )
    state.num_eval_batches = evaluation.num_batches(state, data, stage)
    state.save = partial(resume.save, state, None)
    if request.ckpt_path is not None:
        verify = trainer.settings.verify_checkpoints
        resume.load_weights(state, runtime.session.open_checkpoint(request.ckpt_path, verify))
    trainer.go_live(state)
    hooks("on_start", stage)
    predictions = None
    metrics: dict[str, float] = {}
    if stage == "predict":
        predictions = evaluation.predict(state, data)
    else:
        metrics = evaluation.evaluate(state, data, stage)
    hooks("on_end", stage)
    hooks("teardown", stage)
    return _result(state, metrics, predictions)


def _validation_data(
    trainer: TrainerView, runtime: Runtime, module: Any, request: StageRequest
) -> EvalData | None:
    has_step = overrides(module, "validation_step", Module)
    if request.val_loader is not None and not has_step:
        raise ConfigError(
            f"val_dataloaders were passed, but {type(module).__qualname__} has no validation_step"
        )
    loader = first_given(request.val_loader, module.val_dataloader() if has_step else None)
    if loader is None or trainer.settings.limit_val_batches in (0, 0.0):
        return None
    return _eval_data(trainer, runtime, loader)


def _eval_data(trainer: TrainerView, runtime: Runtime, loader: Iterable[Any]) -> EvalData:
    return EvalData(
        loader,
        collectives=runtime.collectives.data,
        distributed_sampler=trainer.settings.use_distributed_sampler,
        equal_batches="collective_forward" in runtime.session.run.capabilities.features,
    )


def _agreed_run_dir(
    runtime: Runtime, module: Any, attempts: AutoResume | None, root: str | None
) -> str | None:
    if attempts is None:
        return runtime.config.run_dir
    chosen = attempts.run_dir or runtime.config.run_dir or _unused_run_dir(module, root)
    return attempts.begin(str(runtime.broadcast(chosen)))


def _unused_run_dir(module: Any, root: str | None) -> str:
    base = os.path.abspath(f"{root or '.'}/runs/{time.strftime('%Y%m%d-%H%M%S')}-{type(module).__qualname__}")
    return next(path for n in count() if not os.path.lexists(path := f"{base}-{n}" if n else base))


def _result(
    state: StageState, metrics: dict[str, float], predictions: list[Any] | None = None
) -> StageResult:
    return StageResult(
        metrics=metrics,
        latest=state.metrics.latest(),
        progress=state.progress,
        run_dir=state.run_dir,
        in_launching_process=state.runtime.in_launching_process,
        callbacks={callback.state_key: callback.state_dict() for callback in state.hooks.callbacks},
        predictions=predictions,
    )


def _close(state: StageState | None, loggers: list[Logger], failed: bool = False) -> None:
    if state is not None:
        state.metrics.flush()
    for logger in loggers:
        logger.close(failed)
