"""`Live`: everything a running stage consists of, in one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from stratagem.errors import ConfigError
from stratagem.sdk.loops import seed_everything
from stratagem_trainer.hook_names import overrides, refuse_uncalled
from stratagem_trainer.loops.callback_runner import CallbackRunner
from stratagem_trainer.loops.metrics import Metrics
from stratagem_trainer.loops.optimization import Schedule, needs_closure, read_optimizers
from stratagem_trainer.loops.step_module import EndedSteps, StepModule
from stratagem_trainer.module import Module

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.trainer import Trainer


STEPS = {
    "fit": "training_step",
    "validate": "validation_step",
    "test": "test_step",
    "predict": "predict_step",
}
"""Stage → the step that runs its batches."""


_CONFIGURED: WeakSet[Module] = WeakSet()
"""Modules whose `configure_model` has been called in this process."""


@dataclass
class Progress:
    """Where a run is; saved in every checkpoint."""

    epoch: int = 0
    """Index of the current epoch."""
    batch: int = 0
    """Micro-batches of this epoch whose gradients are in the parameters."""
    step: int = 0
    """Completed optimizer steps."""
    validated: int = 0
    """As `batch`, when this epoch was last validated."""
    epoch_is_over: bool = False
    """All batches of this epoch, and its validation, are done."""

    def to_resume(self) -> dict[str, Any]:
        """Where a run that is continued from here begins."""
        if self.epoch_is_over:
            return asdict(Progress(self.epoch + 1, 0, self.step))
        return asdict(self)


class Live:
    """Module, optimizers, metrics and callbacks of a running stage. Made by every rank; collective.

    Args:
        trainer: the user's trainer, which callbacks see.
        runtime: live.
        module: built, not yet on the device.
        stage: "fit", "validate", "test" or "predict".
        run_dir: equal on all ranks; None writes nothing.
        loggers: empty on all ranks but 0.
        batch_size: samples per batch and rank, where the loader tells.
        sample: makes a batch to look at, where the loader allows it.
    """

    def __init__(
        self,
        trainer: Trainer,
        runtime: Runtime,
        module: Module,
        stage: str,
        run_dir: str | None,
        loggers: list[Logger],
        batch_size: int | None,
        sample: Callable[[], Any] | None = None,
    ) -> None:
        settings = trainer.settings
        self.runtime, self.stage, self.run_dir = runtime, stage, run_dir
        self.module, self.settings, self.loggers = module, settings, loggers
        self.progress = Progress()
        self.moments = CallbackRunner(trainer.callbacks)
        self.metrics = Metrics(runtime.collectives.data, loggers, settings.log_every_n_steps)
        self.schedules: list[Schedule] = []
        self.is_training = stage == "fit"
        if self.is_training:
            runtime.session.run.require(needed_features(settings, module))
        steps, ends = StepModule(module), step_ends(module)
        self.prepared = runtime.session.prepare(
            EndedSteps(steps, ends) if ends else steps,
            module,
            self._make_optimizers,
            training=self.is_training,
            manual=not module.automatic_optimization,
            accumulate=settings.accumulate_grad_batches,
            clipping=settings.clipping,
            micro_batch_size=batch_size,
            run_dir=run_dir,
            part=steps,
            ends=ends,
            sample=sample,
            step=STEPS[stage],
        )
        self.guard = runtime.session.guard(self.prepared)
        self.wants_closure = self.is_training and any(map(needs_closure, self.prepared.optimizers))
        seed = runtime.config.seed
        if seed is not None:
            # Parameters are the same everywhere by now; from here on ranks draw different numbers, but for
            # those that read the same batches.
            seed_everything(seed + runtime.collectives.data.rank)

    def _make_optimizers(self) -> list[Optimizer]:
        optimizers, self.schedules = read_optimizers(self.module, self.settings)
        needed = ["several_optimizers"] if len(optimizers) > 1 else []
        if any(needs_closure(optimizer) for optimizer in optimizers):
            if not self.module.automatic_optimization:
                raise ConfigError("an optimizer that needs a closure can't be stepped manually here")
            needed.append("closure")
        self.runtime.session.run.require(needed)
        return optimizers


def needed_features(settings: TrainerSettings, module: Module | None) -> list[str]:
    """What a strategy must be able to do for these settings, as far as is known before launch."""
    needed = []
    if settings.clipping.max_norm is not None:
        needed.append("norm_clipping")
    if settings.clipping.max_value is not None:
        needed.append("value_clipping")
    if module is not None and not module.automatic_optimization:
        needed.append("manual_backward")
        if settings.gradient_clip_val is not None or settings.accumulate_grad_batches > 1:
            raise ConfigError(
                "gradient_clip_val and accumulate_grad_batches belong to automatic optimization, and this module "
                "optimizes manually: clip and accumulate in training_step"
            )
    return needed


def build_module(runtime: Runtime, module: Any) -> Module:
    """Return the user's module.

    It is constructed under the precision's context, and `configure_model` also under the strategy's:
    what that builds need not be there yet, whereas a constructor may make anything, such as data.
    """
    with ExitStack() as stack:
        stack.enter_context(runtime.session.precision.init_context())
        built = module if isinstance(module, nn.Module) else module()
        if not isinstance(built, Module):
            raise ConfigError(
                f"the trainer got a {type(built).__qualname__}: derive it from stratagem.Module, or use "
                "stratagem.Runtime with a loop of your own"
            )
        refuse_uncalled(built)
        if built in _CONFIGURED:
            return built  # with the layers that an earlier run trained
        context = runtime.session.run.strategy.module_init_context()
        if context is not None:
            stack.enter_context(context)
        built.configure_model()
        _CONFIGURED.add(built)
    return built


def step_ends(module: Module) -> dict[str, Callable[[list[Any]], Any]]:
    """Step → the method that ends it, for those that the user's class defines."""
    steps = ("training_step", "validation_step", "test_step")
    return {
        step: getattr(module, f"{step}_end") for step in steps if overrides(module, f"{step}_end", Module)
    }


def first_given(*candidates: Iterable[Any] | None) -> Iterable[Any] | None:
    """Return the first that isn't None."""
    return next((candidate for candidate in candidates if candidate is not None), None)
