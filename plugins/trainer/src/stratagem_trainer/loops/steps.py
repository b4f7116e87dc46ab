"""`OptimizerSteps`: steps the optimizers after the last backward of a window of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem_trainer.loops.loop_optimizer import LoopOptimizer
from stratagem_trainer.loops.schedules import step_schedules

if TYPE_CHECKING:
    from stratagem_trainer.loops.loss_watch import FiniteCheck
    from stratagem_trainer.stage.state import StageState


class OptimizerSteps:
    """Steps every optimizer, its schedulers and the log.

    The module's `optimizer_step`, `configure_gradient_clipping` and `optimizer_zero_grad` are called for each
    optimizer, overridden or not: what they do by default stands in `ModuleHooks`.

    Args:
        state: the stage's objects.
        finite: checks that losses and parameters are finite.
    """

    def __init__(self, state: StageState, finite: FiniteCheck) -> None:
        self._state, self._finite = state, finite
        self._progress, self._metrics = state.progress, state.metrics
        self._module_steps = state.hooks.method_of_module("optimizer_step")
        self._module_drops = state.hooks.method_of_module("optimizer_zero_grad")
        self._before_zero_grad = state.hooks.of("on_before_zero_grad")
        self.optimizers = [
            LoopOptimizer(state, index, finite.check_loss) for index in range(len(state.prepared.optimizers))
        ]
        self._poll = state.runtime.session.checkpointer.poll
        self._after_step = state.guard.after_step if state.guard.is_active else None
        # Avoid a call per step if there is nothing to do.
        self._does_more = finite.ends_run or self._after_step is not None or bool(state.schedules)
        self._batch_idx: int

    def step(
        self, batch_idx: int, outputs: Any = None, evaluate: Callable[[LoopOptimizer], Any] | None = None
    ) -> None:
        """Step the optimizers, drop their gradients, and run checks, schedulers and logging.

        Args:
            batch_idx: index of the window's last batch.
            outputs: the result of `training_step` for that batch, if gradients are computed already.
            evaluate: for optimizers that call a closure: evaluates the loss, clips the gradients, and returns the
                loss. None if gradients are computed already.
        """
        epoch, self._batch_idx = self._progress.epoch, batch_idx
        for optimizer in self.optimizers:
            optimizer.begin(outputs, evaluate and partial(evaluate, optimizer))
            self._module_steps(epoch, batch_idx, optimizer, optimizer.closure)
        for optimizer in self.optimizers:
            for before in self._before_zero_grad:
                before(optimizer.optimizer)
            self.zero_grad(optimizer)
        self._progress.batch = self._state.batch_idx
        if any(optimizer.was_applied for optimizer in self.optimizers):
            self._progress.step += 1
            self.finish([optimizer.index for optimizer in self.optimizers if optimizer.was_called])

    def zero_grad(self, optimizer: LoopOptimizer) -> None:
        """Drop the gradients of an optimizer by the module's `optimizer_zero_grad`."""
        self._module_drops(self._progress.epoch, self._batch_idx, optimizer)

    def finish(self, stepped: Collection[int]) -> None:
        """Run checks, schedulers and logging after a counted step.

        Args:
            stepped: indices of the optimizers that were stepped, and whose schedulers may be due.
        """
        step = self._progress.step
        if self._does_more:
            if self._finite.ends_run:
                self._finite.check_parameters(step)
            if self._after_step is not None:
                self._after_step(step)
            step_schedules(self._state, "step", step, stepped)
        self._metrics.end_step(step, self._progress.epoch)
        self._poll()
