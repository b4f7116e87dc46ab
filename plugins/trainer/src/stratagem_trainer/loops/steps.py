"""`OptimizerSteps`: what comes after the last backward of a window, as the loop or the module's hooks do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem.sdk.loops import loss_of
from stratagem_trainer.loops.manual import LoopOptimizer
from stratagem_trainer.loops.schedules import step_schedules
from stratagem_trainer.stage.hooks import tell_before_step

if TYPE_CHECKING:
    from stratagem_trainer.loops.loss_watch import FiniteCheck
    from stratagem_trainer.stage.state import StageState

_ONLY = (0,)
"""The index of the only optimizer."""


class OptimizerSteps:
    """Steps every optimizer, its schedulers and the log.

    Which hooks the module overrides is asked once: one that nobody overrides isn't there in a step.

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
            LoopOptimizer(self._prepared, index, self._step_one, self._step_completed, hooks)
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
        self._steps_alone = not self._before_step and self._clip is None
        self._step_by_hook = bool(hooks.of("optimizer_step"))
        self.zero_grad = (
            self._zero_grad_by_module if hooks.of("optimizer_zero_grad") else self._prepared.zero_grad
        )
        is_plain = self._steps_alone and not any(
            hooks.of(name) for name in ("optimizer_step", "on_before_zero_grad", "optimizer_zero_grad")
        )
        # One optimizer that nobody has a hook for is stepped in fewer words.
        self._is_plain = is_plain and len(self.optimizers) == 1
        # Hooks may have assigned gradients that other ranks don't have.
        self._step_prepared: Callable[[int], bool] = self._step_complete
        if session.steps_alone:
            directly = self._prepared.steps_directly
            self._step_prepared = self._prepared.step if directly else self._step_watched

    def step(self, batch_idx: int, outputs: Any = None, closure: Callable[[int], Any] | None = None) -> None:
        """Step.

        Args:
            batch_idx: of the window's last batch.
            outputs: of the window's last batch.
            closure: evaluates the loss for the optimizer of an index, clips its gradients, and returns the loss.
        """
        progress, prepared = self._progress, self._prepared
        if closure is not None or not self._is_plain:
            applied = self._step_all(batch_idx, outputs, closure)
        else:
            applied = _ONLY if self._step_prepared(0) else ()
            prepared.zero_grad(0)
        progress.batch = self._state.batch_idx
        if not applied:
            return
        progress.step = step = progress.step + 1
        if self._does_more:
            self._do_more(step, applied)
        self._metrics.end_step(step, progress.epoch)
        self._poll()

    def _do_more(self, step: int, applied: Sequence[int]) -> None:
        """What few runs have after a step: a look at the parameters, the guard's, and schedules."""
        if self._finite.ends_run:
            self._finite.check_parameters(step)
        if self._after_step is not None:
            self._after_step(step)
        step_schedules(self._state, "step", step, applied if self._step_by_hook else None)

    def _step_all(self, batch_idx: int, outputs: Any, closure: Callable[[int], Any] | None) -> Sequence[int]:
        """Step each optimizer and drop its gradients; return the indices of those that were stepped."""
        self._batch_idx = batch_idx
        prepared = self._prepared
        indices = range(len(self.optimizers))
        if self._step_by_hook:
            applied = [index for index in indices if self._step_by_module(index, outputs, closure)]
        elif closure is None and self._steps_alone:
            applied = [index for index in indices if self._step_prepared(index)]
        else:
            applied = [
                index for index in indices if self._step_one(index, closure and _bound(closure, index))
            ]
        for index in indices:
            for before in self._before_zero_grad:
                before(prepared.optimizers[index])
            self.zero_grad(index)
        return applied

    def clip(self, index: int) -> None:
        """Limit the gradients of an optimizer, where the trainer or the module says so."""
        if self._clip is not None:
            self._clip(index)

    def _step_one(self, index: int, evaluate: Callable[[], Any] | None) -> bool:
        if self._before_step:
            if evaluate is None:
                self._prepared.complete_gradients(index)
            tell_before_step(self._before_step, self._prepared, index, has_gradients=evaluate is None)
        if evaluate is None:
            if self._clip is not None:
                self._clip(index)
            return self._step_prepared(index)
        return self._step_watched(index, lambda: self._watched(evaluate()))

    def _watched(self, loss: Any) -> Any:
        self._finite.check_loss(self._progress.step + 1, loss)
        return loss

    def _step_by_module(self, index: int, outputs: Any, closure: Callable[[int], Any] | None) -> bool:
        optimizer, loss = self.optimizers[index], None if closure is not None else loss_of(outputs)
        optimizer.begin(closure and _bound(closure, index), None if loss is None else loss.detach())
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


def _bound(closure: Callable[[int], Any], index: int) -> Callable[[], Any]:
    return lambda: closure(index)
