"""`ModuleRun`: attributes of a module about its run, and methods that don't depend on its model."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from stratagem.errors import ConfigError, StratagemError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from stratagem_trainer.loggers.base import Logger
    from stratagem_trainer.loops.manual_optimizer import ManualOptimizer
    from stratagem_trainer.view import TrainerView


class ModuleRun(nn.Module):
    """Attributes and methods of a `Module` that need only its trainer or its parameters."""

    example_input_array: Any = None
    """A batch for `forward`, for loggers that draw the graph and callbacks that measure. Set it in `__init__`."""

    _trainer: TrainerView | None = None
    _toggled: ExitStack | None = None

    @property
    def has_trainer(self) -> bool:
        """Whether a trainer is running this module."""
        return self._trainer is not None

    @property
    def trainer(self) -> TrainerView:
        """The trainer that is running this module.

        Raises:
            StratagemError: no trainer is running it.
        """
        if self._trainer is None:
            raise StratagemError(f"{type(self).__qualname__} isn't run by a trainer now")
        return self._trainer

    @property
    def current_epoch(self) -> int:
        """Index of the current epoch; 0 outside a run."""
        return self._trainer.current_epoch if self._trainer is not None else 0

    @property
    def global_step(self) -> int:
        """Completed optimizer steps; 0 outside a run."""
        return self._trainer.global_step if self._trainer is not None else 0

    @property
    def loggers(self) -> list[Logger]:
        """The loggers of a fit; empty on all ranks but 0, and outside a run."""
        if self._trainer is None or not self._trainer.has_state:
            return []
        return list(self._trainer.loggers)

    @property
    def logger(self) -> Logger | None:
        """The first of `loggers`; None if there is none, as on all ranks but 0."""
        loggers = self.loggers
        return loggers[0] if loggers else None

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the first floating-point parameter, or else torch's default dtype."""
        found = (p.dtype for p in self.parameters() if p.is_floating_point())
        return next(found, torch.get_default_dtype())

    def print(self, *values: object, **how: Any) -> None:
        """Print on rank 0 only. The arguments are those of `print`."""
        if self._trainer is None or self._trainer.is_main:
            print(*values, **how)

    # Optimizers -----------------------------------------------------------------------------------

    def lr_schedulers(self) -> Any:
        """The schedulers that `configure_optimizers` returned: one, a list of several, or None.

        If a module that optimizes manually calls this method, it must step them itself: the loop then doesn't.
        """
        schedulers = [schedule.scheduler for schedule in self.trainer.state.schedules]
        return schedulers[0] if len(schedulers) == 1 else schedulers or None

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] | None = None,
    ) -> None:
        """Clip the gradients of `optimizer`. Use it in `configure_gradient_clipping`, or if you optimize manually.

        Collective under strategies that shard gradients.

        Args:
            optimizer: one of `self.optimizers()`, or the optimizer that a hook got.
            gradient_clip_val: the largest norm, or the largest absolute value; None and 0 don't clip.
            gradient_clip_algorithm: "norm" or "value"; None is "norm".

        Raises:
            ConfigError: the algorithm is unknown.
            CombinationError: the strategy doesn't support this algorithm.
        """
        algorithm = gradient_clip_algorithm or "norm"
        if algorithm not in ("norm", "value"):
            raise ConfigError(f'gradient_clip_algorithm={algorithm!r} must be "norm" or "value"')
        if not gradient_clip_val:
            return
        self.trainer.runtime.session.run.require([f"{algorithm}_clipping"])
        _own(self.trainer, optimizer).clip(**{f"max_{algorithm}": gradient_clip_val})

    def toggle_grad(self, optimizer: ManualOptimizer) -> AbstractContextManager[None]:
        """Return a context in which only `optimizer`'s parameters require gradients."""
        return _own(self.trainer, optimizer).only_its_gradients()

    def toggled_optimizer(self, optimizer: ManualOptimizer) -> AbstractContextManager[None]:
        """Same as `toggle_grad`."""
        return self.toggle_grad(optimizer)

    def toggle_optimizer(self, optimizer: ManualOptimizer) -> None:
        """Let only `optimizer`'s parameters require gradients, until `untoggle_optimizer` is called."""
        self.untoggle_optimizer()
        toggled = ExitStack()
        toggled.enter_context(self.toggle_grad(optimizer))
        self._toggled = toggled

    def untoggle_optimizer(self, optimizer: ManualOptimizer | None = None) -> None:
        """Undo `toggle_optimizer`. Does nothing if no optimizer is toggled."""
        if self._toggled is not None:
            self._toggled.close()
            self._toggled = None

    # Parameters -----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Turn off gradients of all parameters, and switch to evaluation mode."""
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.eval()

    def unfreeze(self) -> None:
        """Turn on gradients of all parameters, and switch to training mode."""
        for parameter in self.parameters():
            parameter.requires_grad_(True)
        self.train()


def _own(trainer: TrainerView, optimizer: Any) -> ManualOptimizer:
    """Return the run's wrapper of an optimizer; accepts the wrapper or the wrapped optimizer."""
    for own in trainer.state.manual_optimizers:
        if optimizer is own or optimizer is own.optimizer:
            return own
    raise ConfigError(
        f"got a {type(optimizer).__name__} that configure_optimizers didn't return: pass one of self.optimizers()"
    )
