"""Automatic optimization: the loop runs backward for each micro-batch's loss, and steps the optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.sdk.loops import run_micro_batch

if TYPE_CHECKING:
    from stratagem_trainer.loops.batch_hooks import BatchHooks
    from stratagem_trainer.loops.loss_watch import FiniteCheck
    from stratagem_trainer.loops.steps import OptimizerSteps
    from stratagem_trainer.stage.state import StageState


class AutomaticBatches:
    """Runs micro-batches. The last one of a window ends with the optimizers' step.

    Args:
        state: the stage's objects.
        steps: steps the optimizers.
        finite: checks that losses are finite.
        hooks: hooks called around each batch.
    """

    def __init__(
        self, state: StageState, steps: OptimizerSteps, finite: FiniteCheck, hooks: BatchHooks
    ) -> None:
        self._state, self._steps, self._hooks = state, steps, hooks
        self._prepared, self._progress, self._check_loss = state.prepared, state.progress, finite.check_loss

    def run(self, batch: Any, idx: int, divisor: float, is_last: bool) -> None:
        """Run forward and backward. The window's last micro-batch also reduces gradients and steps the optimizers."""
        outputs = run_micro_batch(self._prepared, "training_step", batch, idx, divisor=divisor, sync=is_last)
        self._check_loss(self._progress.step + 1, outputs)
        for after in self._hooks.after_backward:
            after()
        self._state.batch_idx = idx + 1
        if is_last:
            self._steps.step(idx, outputs)
        self._hooks.end(outputs, batch, idx)
