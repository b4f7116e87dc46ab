"""Optimizers such as LBFGS that call a closure, any number of times, to evaluate a window's loss."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem.sdk.collectives import mean_loss
from stratagem.sdk.loops import loss_of, run_micro_batch, weight_of

if TYPE_CHECKING:
    from stratagem_trainer.loops.batch_hooks import BatchHooks
    from stratagem_trainer.loops.loop_optimizer import LoopOptimizer
    from stratagem_trainer.loops.steps import OptimizerSteps
    from stratagem_trainer.stage.state import StageState

_Window = list[tuple[Any, int, float]]
"""Batches, each with its index and the divisor of its loss."""


class ClosureBatches:
    """Collects the micro-batches of a window, and steps when the last one has come.

    Args:
        state: the stage's objects.
        steps: steps the optimizers.
        hooks: around each batch.
    """

    def __init__(self, state: StageState, steps: OptimizerSteps, hooks: BatchHooks) -> None:
        self._state, self._steps, self._hooks = state, steps, hooks
        self._data_ranks = state.runtime.collectives.data
        self._window: _Window = []
        self._outputs: list[Any] = []
        """Outputs of the window's batches, computed with the parameters before the step."""

    def run(self, batch: Any, idx: int, divisor: float, is_last: bool) -> None:
        """Collect a micro-batch; after the window's last one, step."""
        self._window.append((batch, idx, divisor))
        if not is_last:
            return
        window, self._window, self._outputs = self._window, [], []
        self._steps.step(idx, evaluate=partial(self._evaluate, window))
        self._state.batch_idx = self._state.progress.batch = idx + 1
        outputs = self._outputs or [None] * len(window)  # no outputs if the module skipped the step
        for (each, index, _), output in zip(window, outputs):
            self._hooks.end(output, each, index)

    def _evaluate(self, window: _Window, optimizer: LoopOptimizer) -> Any:
        """Run forward and backward of a window for an optimizer, and return the mean loss over ranks."""
        state = self._state
        self._steps.zero_grad(optimizer)
        evaluated: list[Any] = []
        total: Any = 0.0
        # Only the first evaluation is at the parameters that the step began with.
        with state.metrics.discarded() if self._outputs else nullcontext():
            for batch, idx, divisor in window:
                state.metrics.batch, state.current_batch = batch, idx
                output = run_micro_batch(
                    state.prepared, "training_step", batch, idx, divisor=divisor, sync=idx == window[-1][1]
                )
                for after in self._hooks.after_backward:
                    after()
                loss = loss_of(output)
                if loss is not None:
                    total = total + loss.detach() / (divisor if weight_of(output) is None else 1)
                evaluated.append(output)
        self._outputs = self._outputs or evaluated
        optimizer.clip_as_configured()
        loss = mean_loss(total, self._data_ranks)
        weights = state.prepared.loss_weights
        return weights.mean(loss, optimizer.index) if weights.is_used else loss
