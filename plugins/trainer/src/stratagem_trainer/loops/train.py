"""`FitLoop`: the training loop.

`run` trains epochs, `run_epoch` the batches of one. A batch is run by `AutomaticBatches`, or, where the module or an
optimizer calls backward, by `ManualBatches` or `ClosureBatches`; a step of all optimizers by `OptimizerSteps`, of one
by `LoopOptimizer`. docs/hooks.md has all hooks in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stratagem.errors import DataError
from stratagem_trainer.data.transfer import on_device
from stratagem_trainer.loops.automatic import AutomaticBatches
from stratagem_trainer.loops.batch_hooks import BatchHooks
from stratagem_trainer.loops.closure import ClosureBatches
from stratagem_trainer.loops.epoch_end import TrainingEpochEnd
from stratagem_trainer.loops.loss_watch import FiniteCheck
from stratagem_trainer.loops.manual import ManualBatches
from stratagem_trainer.loops.steps import OptimizerSteps
from stratagem_trainer.loops.stopping import Stop
from stratagem_trainer.loops.validations import Validations
from stratagem_trainer.loops.windows import NumberedBatch, micro_batches

if TYPE_CHECKING:
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.stage.state import StageState


class FitLoop:
    """Runs epochs until one of the limits is reached.

    Args:
        state: the stage's objects.
        data: training and validation batches.
        validate: runs a validation; None where there is none.
        data_state: the loaders' positions in a resumed checkpoint.
        resume: called once to restore random number generators: before the first epoch starts, or, if an epoch is
            resumed in its middle, after its iterator is created. None if nothing is resumed.
    """

    def __init__(
        self,
        state: StageState,
        data: FitData,
        validate: Callable[[], object] | None,
        data_state: Any = None,
        resume: Callable[[], None] | None = None,
    ) -> None:
        self.state, self.data = state, data
        self.settings, self.module, self._policy = state.settings, state.module, state.settings.policy
        self.metrics, self.progress = state.metrics, state.progress
        state.num_train_batches = data.num_train_batches
        self._data_state, self._resume = data_state, resume
        self._is_first_epoch, self._is_stopped = True, False
        self._pass_boundary = state.boundary.pass_step if state.boundary is not None else lambda: None
        self._hooks, self._stop = BatchHooks(state.hooks), Stop(state)
        self._validations = Validations(state, validate, data.num_train_batches)
        finite = FiniteCheck(self.metrics.losses, self.module, ends_run=self.settings.terminate_on_nan)
        steps = OptimizerSteps(state, finite)
        self._batches: AutomaticBatches | ClosureBatches | ManualBatches
        if not self.module.automatic_optimization:
            self._batches = manual = ManualBatches(state, steps, finite, self._hooks)
            state.manual_optimizers = manual.optimizers
        else:
            state.manual_optimizers = list(steps.optimizers)
            if state.wants_closure:
                self._batches = ClosureBatches(state, steps, self._hooks)
            else:
                self._batches = AutomaticBatches(state, steps, finite, self._hooks)

    def run(self) -> None:
        """Run until max_epochs or max_steps is reached, or the run is asked to stop."""
        while not self._stop.is_fit_over() or self._is_unfinished():
            self.run_epoch()
        self._restore_generators()  # if the resumed run had no epoch left

    def run_epoch(self) -> None:
        """Run one epoch, or what is left of one that is resumed."""
        state, hooks, run_batch = self.state, self._hooks, self._batches.run
        batches = self._begin_epoch()
        self.metrics.begin_steps()
        first = state.batch_idx
        for idx, (batch, divisor, is_last) in () if self._is_stopped else self._numbered(batches):
            state.current_batch = idx
            if hooks.starts and hooks.skips(batch, idx, first):
                self._ends_after_step()
                break
            self.metrics.batch = batch
            run_batch(batch, idx, divisor, is_last)
            if is_last:
                first = idx + 1
                if self._ends_after_step():
                    break
        self.metrics.end_steps()
        # An epoch that is stopped in its middle is resumed later, unless the policy ends it here.
        is_whole = not self._is_stopped or state.batch_idx == state.num_train_batches
        if is_whole or self._policy.ends_cut_epoch(state.batch_idx):
            self._end_epoch(is_cut=hooks.skips_epoch or not is_whole)

    def _numbered(self, batches: Iterator[Any]) -> Iterator[NumberedBatch]:
        """Yield the remaining micro-batches with their indices; callbacks may replace them."""
        state = self.state
        numbered: Iterator[NumberedBatch] = enumerate(
            micro_batches(state, self.data, batches), state.batch_idx
        )
        for callback in state.hooks.callbacks:
            numbered = callback.training_batches(self.module.trainer, self.module, numbered)
        return numbered

    def _begin_epoch(self) -> Iterator[Any]:
        """Return the remaining batches. Afterwards `_is_stopped` is True if none may be trained on."""
        progress = self.progress
        self.module.train()
        self._hooks.skips_epoch = False
        is_begun = progress.batch > 0
        if not is_begun:
            # Restore before the iterator and on_train_epoch_start, which draw random numbers of this epoch. A run
            # that stops here saves the generators before these draws, as a checkpoint at an epoch's end does.
            self._restore_generators()
            self._pass_boundary()
        batches = self._batches_of_epoch()
        if not is_begun:
            self.state.hooks("on_train_epoch_start")
        self.state.batch_idx = progress.batch
        # A resumed run may still have to run the validation for which its checkpoint didn't wait.
        self._validations.run_if_due()
        self._is_stopped = self._stop.is_due()
        if is_begun:
            self._pass_boundary()
        return batches

    def _ends_after_step(self) -> bool:
        """Do the work between two steps; return whether the epoch ends here.

        Raises:
            StopNow: the run must save and stop.
        """
        self.metrics.end_late()
        self._pass_boundary()
        self._validations.run_if_due()
        self._is_stopped = self._stop.is_due()
        return self._is_stopped

    def _end_epoch(self, is_cut: bool) -> None:
        self._refuse_no_loss()
        self._policy.end_epoch(
            TrainingEpochEnd(
                self.state, self._validations, self._stop, is_cut=is_cut, is_skipped=self._hooks.skips_epoch
            )
        )
        vars(self.progress).update(vars(self.progress.next_epoch()))

    def _batches_of_epoch(self) -> Iterator[Any]:
        data_state, self._data_state = self._data_state, None
        if self.data.made_again(self.progress.epoch):
            self.state.num_train_batches = self.data.num_train_batches
            self._validations.count_batches(self.data.num_train_batches)
        batches = self.data.train.epoch(self.progress.epoch, self.progress.batch, data_state)
        iterator = iter(on_device(self.state, batches))
        self._restore_generators()  # for an epoch resumed in its middle: after the iterator's draws
        return iterator

    def _restore_generators(self) -> None:
        """Restore the random number generators of a resumed run, once."""
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def _is_unfinished(self) -> bool:
        """Whether a validation or an epoch's end is still due after the resumed checkpoint."""
        batch = self.progress.batch
        return batch > 0 and (self._validations.is_due() or batch == self.state.num_train_batches)

    def _refuse_no_loss(self) -> None:
        """Refuse a training_step that returned nothing in the whole first epoch."""
        seen, is_first, self._is_first_epoch = self.metrics.losses.without_loss, self._is_first_epoch, False
        if is_first and self.module.automatic_optimization and 0 < self.state.batch_idx <= seen:
            raise DataError(
                f"{type(self.module).__qualname__}.training_step returned None for all {seen} batches of the epoch, "
                "and nothing was trained: return the loss, or set automatic_optimization = False"
            )
