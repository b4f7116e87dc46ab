"""`AutomaticSteps`: forward, backward and optimizer steps where the loop calls all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stratagem.errors import DataError
from stratagem_trainer.loops.outputs import seen_by_hooks
from stratagem_trainer.loops.windows import divisors

if TYPE_CHECKING:
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.loops.batch_hooks import BatchHooks
    from stratagem_trainer.loops.loss_watch import FiniteCheck
    from stratagem_trainer.loops.steps import OptimizerSteps
    from stratagem_trainer.stage.state import StageState

STEP = "training_step"


class AutomaticSteps:
    """Runs windows of micro-batches, or steps of one batch each.

    Args:
        state: the stage's objects.
        data: training batches.
        steps: steps the optimizers.
        finite: looks at losses.
        hooks: around each batch.
    """

    def __init__(
        self, state: StageState, data: FitData, steps: OptimizerSteps, finite: FiniteCheck, hooks: BatchHooks
    ) -> None:
        self._state, self._data, self._steps, self._hooks = state, data, steps, hooks
        self._check_loss = finite.check_loss

    def window(self, size: int, batches: Iterable[Any]) -> None:
        """Run one step of `size` micro-batches.

        Raises:
            DataError: the loader gave fewer.
        """
        state, hooks, first = self._state, self._hooks, self._state.batch_idx
        forward_backward = state.prepared.forward_backward
        by = divisors(state, self._data, size)
        idx = first
        for position, batch in enumerate(batches, 1):
            state.current_batch = idx
            if hooks.starts and hooks.skips(batch, idx, first):
                return
            state.metrics.batch = batch
            outputs = forward_backward(STEP, batch, idx, divisor=by[position - 1], sync=position == size)
            self._check_loss(state.progress.step + 1, outputs)
            for after in hooks.after_backward:
                after()
            idx += 1
            state.batch_idx = idx
            if position == size:
                self._steps.step(idx - 1, outputs)
            hooks.end(outputs, batch, idx - 1)

        if state.batch_idx != first + size:
            num_batches = state.num_train_batches
            raise DataError(
                f"the loader was to give {num_batches} batches and gave {state.batch_idx}: let its len() say what "
                "it gives"
            )

    def single(self, batches: Iterable[Any], ends_here: Callable[[], bool]) -> None:
        """Run steps of one batch each: what `window` does, without what only several batches need.

        Args:
            batches: what is left of the epoch.
            ends_here: what comes between two steps; whether no further one does.
        """
        state, hooks, metrics = self._state, self._hooks, self._state.metrics
        starts, ends, all_after_backward = hooks.starts, hooks.ends, hooks.after_backward
        forward_backward, check_loss, progress = (
            state.prepared.forward_backward,
            self._check_loss,
            state.progress,
        )
        step = self._steps.step
        idx = state.batch_idx
        for batch in batches:
            state.current_batch = idx
            if starts and hooks.skips(batch, idx, idx):
                metrics.end_late()
                ends_here()
                return
            metrics.batch = batch
            outputs = forward_backward(STEP, batch, idx)
            check_loss(progress.step + 1, outputs)
            for after in all_after_backward:
                after()
            state.batch_idx = idx + 1
            step(idx, outputs)
            if ends:
                seen = seen_by_hooks(outputs)
                for end in ends:
                    end(seen, batch, idx)
            idx += 1
            metrics.end_late()
            if ends_here():
                return
