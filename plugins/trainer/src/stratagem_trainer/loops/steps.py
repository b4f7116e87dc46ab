"""`OptimizerSteps`: what comes after the last backward of a window, as the loop or the module's hooks do it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem.sdk.loops import loss_of
from stratagem_trainer.loops.schedules import step_schedules
from stratagem_trainer.loops.wrapped_optimizers import LoopOptimizer
from stratagem_trainer.stage.hooks import tell_before_step

if TYPE_CHECKING:
    from stratagem_trainer.loops.loss_watch import FiniteCheck
    from stratagem_trainer.stage.state import StageState


class OptimizerSteps:
    """Steps every optimizer, its schedulers and the log.

    Looks once which hooks the module overrides. A hook that isn't overridden costs nothing in a step.

    Args:
        state: the stage's objects.
        finite: looks at losses and parameters.
    """

    def __init__(self, state: StageState, finite: FiniteCheck) -> None:
        self._state, self._finite = state, finite
        self._prepared, self._progress, self._metrics = state.prepared, state.progress, state.metrics
        self._settings, self._module = state.settings, state.module
        hooks = state.hooks
        self._before_step = hooks.of("on_before_optimizer_step")
        self._before_zero_grad = hooks.of("on_before_zero_grad")
        session = state.runtime.session
        self._step_completed = partial(session.step, self._prepared)
        self._step_watched = partial(session.step_prepared, self._prepared)
        self.optimizers = [
            LoopOptimizer(self._prepared, index, self._step_optimizer, self._step_completed, hooks)
            for index in range(len(self._prepared.optimizers))
        ]
        self._clip: Callable[[int], object] | None = None
        if hooks.of("configure_gradient_clipping"):
            self._clip = self._clip_by_module
        elif self._settings.gradient_clip_val is not None:
            self._clip = self._clip_by_settings
        self._poll = session.checkpointer.poll
        self._batch_idx = 0
        self._after_step = state.guard.after_step if state.guard.is_active else None
        self._does_more = finite.ends_run or self._after_step is not None or bool(state.schedules)
        self._is_stepped_by_module = bool(hooks.of("optimizer_step"))
        self._step_one = self._step_by_module if self._is_stepped_by_module else self._step_optimizer
        self.zero_grad = (
            self._zero_grad_by_module if hooks.of("optimizer_zero_grad") else self._prepared.zero_grad
        )
        self._indices = range(len(self.optimizers))
        # Hooks may have assigned gradients that other ranks don't have.
        self._step_prepared: Callable[[int], bool] = self._step_complete
        if session.steps_alone:
            directly = self._prepared.steps_directly
            self._step_prepared = self._prepared.step if directly else self._step_watched

    def step(self, batch_idx: int, outputs: Any = None, closure: Callable[[int], Any] | None = None) -> None:
        """Step the optimizers, drop their gradients, and do what follows a step.

        Args:
            batch_idx: of the window's last batch.
            outputs: of the window's last batch.
            closure: evaluates the loss for the optimizer of an index, clips its gradients, and returns the loss.
        """
        self._batch_idx = batch_idx
        step_one = self._step_one
        applied = [
            index for index in self._indices if step_one(index, closure and partial(closure, index), outputs)
        ]
        for index in self._indices:
            for before in self._before_zero_grad:
                before(self._prepared.optimizers[index])
            self.zero_grad(index)
        self._progress.batch = self._state.batch_idx
        if applied:
            self._progress.step += 1
            self.finish(applied if self._is_stepped_by_module else None)

    def finish(self, stepped: Collection[int] | None) -> None:
        """Do what follows a step that was counted: checks, schedulers, the log.

        Args:
            stepped: the optimizers whose schedulers are due; all where None.
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

    def clip(self, index: int) -> None:
        """Limit the gradients of an optimizer, where the trainer or the module says so."""
        if self._clip is not None:
            self._clip(index)

    def _step_optimizer(
        self, index: int, evaluate: Callable[[], Any] | None = None, outputs: Any = None
    ) -> bool:
        """Call hooks, clip, and step one optimizer; whether that was applied.

        Args:
            index: of the optimizer.
            evaluate: evaluates the loss, where the optimizer does so itself; gradients are there otherwise.
            outputs: only looked at where the module steps.
        """
        if self._before_step:
            if evaluate is None:
                self._prepared.complete_gradients(index)
            tell_before_step(self._before_step, self._prepared, index, has_gradients=evaluate is None)
        if evaluate is not None:
            return self._step_watched(index, lambda: self._watched(evaluate()))
        if self._clip is not None:
            self._clip(index)
        return self._step_prepared(index)

    def _watched(self, loss: Any) -> Any:
        self._finite.check_loss(self._progress.step + 1, loss)
        return loss

    def _step_by_module(self, index: int, evaluate: Callable[[], Any] | None, outputs: Any) -> bool:
        optimizer, loss = self.optimizers[index], None if evaluate is not None else loss_of(outputs)
        optimizer.begin(evaluate, None if loss is None else loss.detach())
        self._module.optimizer_step(self._progress.epoch, self._batch_idx, optimizer, optimizer.closure)
        return optimizer.was_applied

    def _zero_grad_by_module(self, index: int) -> None:
        self._module.optimizer_zero_grad(self._progress.epoch, self._batch_idx, self.optimizers[index])

    def _step_complete(self, index: int) -> bool:
        return self._step_completed(index, None)[0]

    def _clip_by_settings(self, index: int) -> None:
        self._prepared.complete_gradients(index)
        self._prepared.clip(index, self._settings.clipping)

    def _clip_by_module(self, index: int) -> None:
        self._prepared.complete_gradients(index)
        self._prepared.precision.unscale(self._prepared.optimizers[index])
        algorithm = self._settings.gradient_clip_algorithm
        self._module.configure_gradient_clipping(
            self.optimizers[index], self._settings.gradient_clip_val, algorithm
        )
