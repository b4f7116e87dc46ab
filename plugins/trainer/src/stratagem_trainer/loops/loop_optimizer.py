"""`LoopOptimizer`: an optimizer that the loop steps, as a module's `optimizer_step` gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from stratagem.errors import ConfigError
from stratagem.sdk.loops import drop_gradients, loss_of
from stratagem_trainer.loops.manual_optimizer import ManualOptimizer

if TYPE_CHECKING:
    from stratagem_trainer.stage.state import StageState


class LoopOptimizer(ManualOptimizer):
    """One optimizer that the loop steps, as `Module.optimizer_step` and `optimizer_zero_grad` get it.

    Args:
        state: the stage's objects.
        index: index of the optimizer.
        check_loss: called with the step number and each loss that the optimizer's closure evaluates.

    Attributes:
        was_called: whether `step` was called since `begin`.
        was_applied: whether that step was applied; a gradient scaler may skip it.
    """

    def __init__(self, state: StageState, index: int, check_loss: Callable[[int, Any], None]) -> None:
        super().__init__(state.runtime, state.prepared, state.hooks, index)
        self._check_loss, self._progress = check_loss, state.progress
        self._clips_itself = bool(state.hooks.of("configure_gradient_clipping"))
        self._module_clips = state.hooks.method_of_module("configure_gradient_clipping")
        settings = state.settings
        self._clipping = settings.gradient_clip_val, settings.gradient_clip_algorithm
        # With a single process, and a precision that allows it, step the optimizer directly.
        self._steps_directly = self._session.steps_alone and self._prepared.steps_directly
        if self._steps_directly:
            self._prepared.loss_weights.watches_steps = True
        self._evaluate: Callable[[], Any] | None
        self._outputs: Any
        self._is_evaluated: bool
        self.was_called: bool
        self.was_applied: bool

    def begin(self, outputs: Any, evaluate: Callable[[], Any] | None) -> None:
        """Begin a step.

        Args:
            outputs: the result of `training_step`, if gradients are computed already.
            evaluate: evaluates the loss, if the optimizer calls a closure itself.
        """
        self._outputs, self._evaluate = outputs, evaluate
        self._is_evaluated = self.was_called = self.was_applied = False

    def closure(self) -> Any:
        """The closure that `optimizer_step` gets: returns the loss, and leaves its gradients.

        Raises:
            ConfigError: it is called twice for an optimizer that doesn't need a closure.
        """
        if self._evaluate is not None:
            return self._evaluate()
        if self._is_evaluated:
            raise ConfigError(
                f"optimizer_step called its closure twice for {type(self.optimizer).__name__}, whose gradients are "
                "there already: only an optimizer whose step() can't do without a closure evaluates the loss again; "
                "optimize manually"
            )
        self._is_evaluated = True
        loss = loss_of(self._outputs)
        return None if loss is None else loss.detach()

    def step(self, closure: Callable[[], Any] | None = None) -> bool:
        """Call `on_before_optimizer_step`, clip, and step; return False if the step was skipped. Collective.

        Args:
            closure: the closure that `optimizer_step` got, or a wrapper of it.
        """
        self.was_called = True
        if self._evaluate is not None:
            applied = self._step_by_evaluating(closure or self._evaluate)
        else:
            if closure is not None:
                closure()
            self._call_before_step(has_gradients=True)
            self.clip_as_configured()
            if self._steps_directly:
                applied = self._prepared.step(self.index)
            else:
                # Hooks may have assigned gradients that other ranks don't have.
                applied, _ = self._session.step(self._prepared, self.index)
        self.was_applied = self.was_applied or applied
        return applied

    def _step_by_evaluating(self, evaluate: Callable[[], Any]) -> bool:
        def checked() -> Any:
            loss = evaluate()
            self._check_loss(self._progress.step + 1, loss)
            return loss

        self._call_before_step(has_gradients=False)
        return self._session.step_prepared(self._prepared, self.index, checked)

    def clip_as_configured(self) -> None:
        """Call `configure_gradient_clipping` if the module overrides it or the trainer has a limit. Collective."""
        limit, algorithm = self._clipping
        if not limit and not self._clips_itself:
            return
        self._prepared.complete_gradients(self.index)
        if self._clips_itself:
            self._prepared.precision.unscale(self.optimizer)
        self._module_clips(self, limit, algorithm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of the optimizer's parameters to None, or to zero if `set_to_none` is False."""
        drop_gradients(self._prepared, self.index, set_to_none)
