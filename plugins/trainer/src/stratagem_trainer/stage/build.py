"""Build the objects of a stage in one worker: the prepared module, its optimizers, metrics and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from stratagem import LoopPlan, ModuleSteps
from stratagem.errors import ConfigError, UsageError, short
from stratagem.sdk.loops import seed_everything
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.selection import merge_callbacks, refuse_callbacks
from stratagem_trainer.data.sources import prepare_data, transfer_hooks
from stratagem_trainer.loops.optimizers import Schedule, needs_closure, read_optimizers
from stratagem_trainer.metrics.metrics import Metrics
from stratagem_trainer.module.hook_names import refuse_uncalled
from stratagem_trainer.module.module import Module
from stratagem_trainer.module.step_module import EndedSteps, step_module
from stratagem_trainer.stage.batch_norm import synchronize_batch_norms
from stratagem_trainer.stage.hooks import HookRunner, overrides
from stratagem_trainer.stage.seeding import worker_seed
from stratagem_trainer.stage.state import STEPS, StageState

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.data.data_module import DataModule
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.view import TrainerView


_STEP_HOOKS = ("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")
_CONFIGURED: WeakSet[Module] = WeakSet()
"""Modules whose `configure_model` has been called in this process."""


def begin_stage(
    settings: TrainerSettings,
    runtime: Runtime,
    module: Module,
    hooks: HookRunner,
    stage: str,
    run_dir: str | None,
    loggers: list[Logger],
    batch_size: int | None,
    sample: Callable[[], Any] | None = None,
    micro_batches: int = 1,
) -> StageState:
    """Set up the module, its optimizers, metrics and callbacks. Collective.

    Args:
        settings: the trainer's settings.
        runtime: an entered runtime.
        module: the constructed module, not yet on the device.
        hooks: of the module and the callbacks.
        stage: "fit", "validate", "test" or "predict".
        run_dir: equal on all ranks; None if the stage writes nothing.
        loggers: empty on all ranks but 0.
        batch_size: samples per batch and rank; None if unknown.
        sample: returns a batch of the loader to inspect; None if the loader doesn't allow it.
        micro_batches: number per optimizer step.
    """
    run = runtime.session.run
    is_training = stage == "fit"
    if stage != "predict" and not overrides(module, STEPS[stage], Module):
        raise UsageError(
            f"{type(module).__qualname__} has no {STEPS[stage]}: {stage} needs one; define "
            f"{STEPS[stage]}(self, batch, batch_idx)"
        )
    if is_training:
        run.require(needed_features(settings, module))
    schedules: list[Schedule] = []

    def make_optimizers() -> list[Optimizer]:
        optimizers, schedules[:] = read_optimizers(module, settings)
        needed = ["several_optimizers"] if len(optimizers) > 1 else []
        if any(needs_closure(optimizer) for optimizer in optimizers):
            if not module.automatic_optimization:
                raise ConfigError("an optimizer that needs a closure can't be stepped manually here")
            needed.append("closure")
        run.require(needed)
        return optimizers

    before_backward = hooks.of("on_before_backward") if is_training and module.automatic_optimization else []
    steps, ends = step_module(module, before_backward), step_end_fns(module)
    prepared = runtime.session.prepare(
        EndedSteps(steps, ends) if ends else steps,
        module,
        make_optimizers,
        LoopPlan(
            is_training,
            manual=not module.automatic_optimization,
            accumulate=micro_batches,
            clipping=settings.clipping,
            micro_batch_size=batch_size,
        ),
        ModuleSteps(steps, ends, sample, STEPS[stage]),
        run_dir,
    )
    state = StageState(
        runtime=runtime,
        stage=stage,
        module=module,
        settings=settings,
        run_dir=run_dir,
        loggers=loggers,
        hooks=hooks,
        metrics=Metrics(
            runtime.collectives.data,
            loggers,
            settings.steps_per_row,
            module,
            settings.policy.evaluation_step,
        ),
        prepared=prepared,
        guard=runtime.session.guard(prepared),
        schedules=schedules,
        micro_batches=micro_batches,
        wants_closure=is_training and any(map(needs_closure, prepared.optimizers)),
    )
    state.metrics.muted = settings.barebones
    if module.trainer.profiler.is_active:
        from stratagem_trainer.profilers.instrument import instrument

        instrument(module.trainer.profiler, state)
    seed = worker_seed(runtime, module.trainer.given_seed)
    if seed is not None:
        # Parameters are equal on all ranks by now. From here on, ranks that read different batches draw different
        # random numbers.
        seed_everything(seed + runtime.collectives.data.rank)
    return state


def needed_features(settings: TrainerSettings, module: Module | None) -> list[str]:
    """Return the features that these settings need of a strategy, as far as they are known before launch."""
    needed = []
    if settings.clipping.max_norm is not None:
        needed.append("norm_clipping")
    if settings.clipping.max_value is not None:
        needed.append("value_clipping")
    own = [] if module is None else [name for name in _STEP_HOOKS if overrides(module, name, Module)]
    if own:
        needed.append("optimizer_hooks")
    if module is not None and not module.automatic_optimization:
        if own:
            raise ConfigError(
                f"{type(module).__qualname__} optimizes manually, and defines {own[0]}, which only automatic "
                "optimization calls: do in training_step what it does"
            )
        needed.append("manual_backward")
        accumulates = settings.accumulate_grad_batches > 1 or settings.global_batch_size is not None
        if settings.gradient_clip_val is not None or accumulates:
            raise ConfigError(
                "gradient_clip_val, accumulate_grad_batches and global_batch_size are for automatic optimization, "
                "and this module optimizes manually: clip and accumulate in training_step"
            )
    return needed


def construct_module(runtime: Runtime, module: Any) -> Module:
    """Return the user's module. If it is a callable, call it in the precision's context.

    Raises:
        ConfigError: it isn't a `Module`, or it defines a hook that would never be called.
    """
    if not isinstance(module, nn.Module) and not callable(module):
        raise ConfigError(
            f"the trainer got model={short(module)}: pass a stratagem.Module, or a function that makes one"
        )
    with runtime.session.precision.init_context():
        built = module if isinstance(module, nn.Module) else module()
    if not isinstance(built, Module):
        raise ConfigError(
            f"the trainer got a {type(built).__qualname__}: derive it from stratagem.Module, or use "
            "stratagem.Runtime with your own training loop"
        )
    refuse_uncalled(built)
    return built


def configure_module(runtime: Runtime, module: Module) -> None:
    """Call `configure_model` in the contexts of the precision and the strategy, once per process.

    The strategy's context may defer initialization, so that the layers have no values yet. Constructors don't run in
    it, because they may also make tensors that aren't parameters, such as data.
    """
    if module in _CONFIGURED:
        return  # it has the layers that an earlier run trained
    with ExitStack() as stack:
        stack.enter_context(runtime.session.precision.init_context())
        context = runtime.session.run.strategy.module_init_context()
        if context is not None:
            stack.enter_context(context)
        module.configure_model()
    _CONFIGURED.add(module)


def has_its_layers(module: Module) -> bool:
    """Whether the module has its layers from its constructor, and not from `setup` or `configure_model`."""
    return all(getattr(type(module), hook) is getattr(Module, hook) for hook in ("setup", "configure_model"))


def configure_alone(module: Module) -> None:
    """Call `configure_model` outside of a run. Runs in this process don't call it again."""
    if module not in _CONFIGURED:
        module.configure_model()
        _CONFIGURED.add(module)


def prepare_module(
    runtime: Runtime, trainer: TrainerView, module: Module, stage: str, datamodule: DataModule | None = None
) -> HookRunner:
    """Add the module's callbacks, and call `prepare_data`, `setup` and `configure_model`. Collective.

    Returns:
        The hooks of the stage's callbacks and of the module.
    """
    trainer.callbacks = merge_callbacks(trainer.callbacks, module, runtime.session.run)
    if stage == "fit":
        refuse_callbacks(runtime.session.run, trainer.callbacks)
    of_data = transfer_hooks(module, datamodule)
    hooks = HookRunner(trainer.callbacks, trainer, module, (Callback, Module), of_data)
    prepare_data(runtime, datamodule)
    if hooks.of("prepare_data"):
        if runtime.local_rank == 0:
            hooks("prepare_data")
        runtime.barrier()
    if datamodule is not None:
        datamodule.setup(stage)
    hooks("setup", stage)
    configure_module(runtime, module)
    if trainer.settings.sync_batchnorm:
        synchronize_batch_norms(runtime, module)
    return hooks


def tear_down(hooks: HookRunner, datamodule: DataModule | None, stage: str) -> None:
    """Call `teardown` of the data module, the callbacks and the module."""
    if datamodule is not None:
        datamodule.teardown(stage)
    hooks("teardown", stage)


def step_end_fns(module: Module) -> dict[str, Callable[[list[Any]], Any]]:
    """Return, for each step whose `*_step_end` method the user's class defines, that method."""
    steps = ("training_step", "validation_step", "test_step")
    return {
        step: getattr(module, f"{step}_end") for step in steps if overrides(module, f"{step}_end", Module)
    }


def make_loggers(logger: bool | Sequence[Logger], stage: str) -> list[Logger]:
    """Return the loggers of a stage, for rank 0.

    Args:
        logger: True for the default, False for none, or loggers.
        stage: "predict" has no loggers; the default logger is used only in a fit, as other stages have no run folder.
    """
    if stage == "predict":
        return []
    if not isinstance(logger, bool):
        return list(logger)
    if not logger or stage != "fit":
        return []
    from stratagem_trainer.loggers.csv import CSVLogger

    return [CSVLogger()]


def describe(trainer: TrainerView, module: Module) -> dict[str, Any]:
    """Return the settings and the selected components for loggers, JSON-serializable."""
    config = {k: v if _is_plain(v) else repr(v) for k, v in asdict(trainer.config).items()}
    settings = asdict(trainer.settings)
    del settings["policy"]  # an object, not a user's setting
    return {"module": type(module).__qualname__, "run": config, "trainer": settings}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple, dict))
