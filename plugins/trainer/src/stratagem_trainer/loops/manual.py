"""Manual optimization: the module runs backward and steps its optimizers itself."""

from __future__ import annotations

from inspect import isfunction
from typing import TYPE_CHECKING, Any

from stratagem_trainer.loops.manual_optimizer import ManualOptimizer

if TYPE_CHECKING:
    from stratagem_trainer.loops.batch_hooks import BatchHooks
    from stratagem_trainer.loops.loss_watch import FiniteCheck
    from stratagem_trainer.loops.steps import OptimizerSteps
    from stratagem_trainer.stage.state import StageState


class ManualBatches:
    """Runs the module's `training_step`, and counts a step if it has stepped an optimizer.

    Args:
        state: the stage's objects.
        steps: runs checks, schedulers and logging after a step.
        finite: checks that losses are finite.
        hooks: hooks called around each batch.

    Attributes:
        optimizers: the optimizers that the module gets.
    """

    def __init__(
        self, state: StageState, steps: OptimizerSteps, finite: FiniteCheck, hooks: BatchHooks
    ) -> None:
        self._state, self._steps, self._hooks = state, steps, hooks
        self._policy, self._check_loss = state.settings.policy, finite.check_loss
        self._stepped: set[int] = set()
        """Indices of the optimizers that the batch has stepped."""
        self.optimizers = [
            ManualOptimizer(state.runtime, state.prepared, state.hooks, index, self._count)
            for index in range(len(state.prepared.optimizers))
        ]
        state.steps_schedules_by_hand = not self._policy.steps_schedulers_of_manual_modules(
            _mentions(type(state.module), "lr_schedulers")
        )

    def run(self, batch: Any, idx: int, divisor: float, is_last: bool) -> None:
        """Run a batch. Each batch ends a window, since the module accumulates gradients itself."""
        state, progress = self._state, self._state.progress
        self._stepped = set()
        outputs = state.prepared.manual_step("training_step", batch, idx)
        self._check_loss(progress.step + 1, outputs)
        state.batch_idx = progress.batch = idx + 1
        if self._stepped:
            self._policy.count_manual_batch(progress)
            self._steps.finish(self._stepped)
        self._hooks.end(outputs, batch, idx)

    def _count(self, index: int) -> None:
        self._stepped.add(index)
        self._policy.count_manual_step(self._state.progress)


def _mentions(kind: type, name: str) -> bool:
    """Whether a method of a user's class refers to this name."""
    own = (each for each in kind.__mro__ if not each.__module__.startswith(("stratagem_trainer.", "torch.")))
    methods = (value for each in own for value in vars(each).values() if isfunction(value))
    return any(name in method.__code__.co_names for method in methods)
