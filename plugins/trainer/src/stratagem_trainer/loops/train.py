"""The training loop.

In outline, with the hooks of callbacks and module (stratagem_trainer.stage.hooks has them all)::

    on_start, on_fit_start, on_train_start
    for epoch in epochs:
        save and end here, if the run is to stop (StopNow)
        on_train_epoch_start
        for window in windows of `accumulate_grad_batches` batches:
            for batch in window:
                on_train_batch_start
                training_step, on_before_backward, backward, on_after_backward
                                       (gradients are reduced on the window's last batch)
                optimizer_step (on_before_optimizer_step, clip, step), on_before_zero_grad, zero_grad, schedulers,
                                       log (after the window's last batch)
                on_train_batch_end
            save and end here, if the run is to stop (StopNow; also between batches of a validation)
            validate, where val_check_interval says so
        validate, epoch schedulers
        on_train_epoch_end
    on_train_end, on_fit_end, on_end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem.errors import DataError
from stratagem.sdk.collectives import mean_loss
from stratagem.sdk.loops import loss_of
from stratagem_trainer.data.transfer import on_device
from stratagem_trainer.loops.automatic import STEP, AutomaticSteps
from stratagem_trainer.loops.batch_hooks import BatchHooks
from stratagem_trainer.loops.loss_watch import FiniteCheck
from stratagem_trainer.loops.manual import ManualOptimizer, mentions
from stratagem_trainer.loops.schedules import step_schedules
from stratagem_trainer.loops.steps import OptimizerSteps
from stratagem_trainer.loops.stopping import Stop
from stratagem_trainer.loops.validation_times import ValidationTimes
from stratagem_trainer.loops.windows import divisors, epoch_windows, single_batches

if TYPE_CHECKING:
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.stage.state import StageState


class FitLoop:
    """Runs epochs until one of the limits is reached.

    Args:
        state: the stage's objects.
        data: training and validation batches.
        validate: runs a validation; None where there is none.
        resume: called once to restore random number generators: before the first epoch begins, or, within an
            epoch that was begun, when its iterator exists; None where nothing is resumed.
    """

    def __init__(
        self,
        state: StageState,
        data: FitData,
        validate: Callable[[], object] | None,
        data_state: Any = None,
        resume: Callable[[], None] | None = None,
    ) -> None:
        self.state, self.data, self.validate = state, data, validate
        self._has_validated = False
        self.settings, self.module, self._rules = state.settings, state.module, state.settings.rules
        self.prepared, self.metrics, self.progress = state.prepared, state.metrics, state.progress
        self.num_batches = state.num_train_batches = data.num_train_batches
        self.data_ranks = state.runtime.collectives.data
        self._data_state, self._resume = data_state, resume
        self._is_first_epoch, self._stops, self._last_step = True, False, self.settings.steps
        self._stepped: set[int] = set()
        self._finite = FiniteCheck(self.metrics.losses, self.module, ends_run=self.settings.terminate_on_nan)
        self._steps = OptimizerSteps(state, self._finite)
        hooks = state.hooks
        self._hooks = BatchHooks(hooks)
        self._automatic = AutomaticSteps(state, data, self._steps, self._finite, self._hooks)
        self._stop = Stop(state)
        self._pass_boundary = state.boundary.pass_step if state.boundary is not None else lambda: None
        self._times = ValidationTimes(self.settings, self.progress, self.num_batches) if validate else None
        state.manual_optimizers = list(self._steps.optimizers)
        if not self.module.automatic_optimization:
            self._run_window = self._manual_window
            state.steps_schedules_by_hand = self._rules.counts_each_optimizer or mentions(
                type(self.module), "lr_schedulers"
            )
            step_completed = partial(state.runtime.session.step, self.prepared)
            state.manual_optimizers = [
                ManualOptimizer(self.prepared, index, self._count_manual_step, step_completed, hooks)
                for index in range(len(self.prepared.optimizers))
            ]
        elif state.wants_closure:
            self._run_window = self._closure_window
        else:
            self._run_window = self._automatic.window

    def run(self) -> None:
        """Run until max_epochs or max_steps is reached, or somebody wants to stop."""
        while not self._is_over() or self._is_unfinished():
            self.run_epoch()
        self._restore_generators()  # where it was over already when it was resumed

    def _restore_generators(self) -> None:
        """Restore the random number generators of a resumed run, once."""
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def _is_over(self) -> bool:
        epochs, steps = self.settings.epochs, self.settings.steps
        return (
            (epochs is not None and self.progress.epoch >= epochs)
            or (steps is not None and self.progress.all_steps >= steps)
            or self._stop.is_heard()
        )

    def _is_unfinished(self) -> bool:
        """Whether a resumed checkpoint was written before a validation or an epoch's end that are still due."""
        batch = self.progress.batch
        return batch > 0 and (self._validation_is_due() or batch == self.num_batches)

    def run_epoch(self) -> None:
        """Run one epoch, or what is left of one that is resumed."""
        progress, hooks, metrics = self.progress, self.state.hooks, self.metrics
        self.module.train()
        is_begun = progress.batch > 0
        if not is_begun:
            # The iterator and on_train_epoch_start draw random numbers, and belong to the epoch: a run that stops
            # here saves what was before them, as the checkpoint of an epoch's end does.
            self._restore_generators()
            self._pass_boundary()
        iterator = self._epoch_iterator()
        if not is_begun:
            hooks("on_train_epoch_start")
        self.state.batch_idx = progress.batch
        # In a resumed run, the one that the checkpoint didn't wait for.
        self._validate_if_due()
        self._stops = self._has_to_stop()
        if is_begun:
            self._pass_boundary()
        metrics.begin_steps()
        if not self._stops:
            self._run_steps(iterator)
        metrics.end_steps()
        is_skipped, self._hooks.skips_epoch = self._hooks.skips_epoch, False
        # Stopped on the way: the epoch only counts as over when there was no batch left, or by the rules.
        is_whole = not self._stops or self.state.batch_idx == self.num_batches
        if is_whole or (self._rules.ends_cut_epoch and self.state.batch_idx):
            self._end_epoch(self._rules.ends_cut_epoch and (is_skipped or not is_whole), is_skipped)

    def _run_steps(self, iterator: Iterator[Any]) -> None:
        batches = single_batches(self.state, self.data.train, iterator)
        if batches is not None and self._run_window == self._automatic.window:
            self._automatic.single(batches, self._ends_here)
            return
        for size, window in epoch_windows(self.state, self.data.train, iterator):
            self._run_window(size, window)
            self.metrics.end_late()
            if self._ends_here() or self._hooks.skips_epoch:
                break

    def _ends_here(self) -> bool:
        """What comes between two steps; whether no further one does."""
        self._pass_boundary()
        if self._times is not None:
            self._validate_if_due()
        is_limited = self._last_step is not None  # not a call per step where nothing is
        if self.state.should_stop or self._stop.is_timed or (is_limited and self._is_last_step()):
            self._stops = self._has_to_stop()
        return self._stops

    def _has_to_stop(self) -> bool:
        return self._stop.is_heard() or self._is_last_step()

    def _is_last_step(self) -> bool:
        last = self._last_step
        return last is not None and self.progress.all_steps >= last

    def _validate_if_due(self) -> None:
        if self.validate is not None and self._validation_is_due():
            self._run_validation()

    def _run_validation(self) -> None:
        assert self.validate is not None
        if not self._has_validated:
            # The first figures that are looked at are of a model that ranks agree on.
            self.state.guard.compare_last_steps("before the first validation")
            self._has_validated = True
        self.validate()

    def _validation_is_due(self) -> bool:
        return self._times is not None and self._times.is_due()

    def _end_epoch(self, is_cut: bool, is_skipped: bool) -> None:
        progress, hooks, rules = self.progress, self.state.hooks, self._rules
        self._refuse_no_loss()
        is_early = rules.steps_schedulers_before_validation
        if is_early and not is_cut:
            step_schedules(self.state, "epoch", progress.epoch + 1, takes_metric=False)
        if self.validate is not None and self._validates_at_the_end(is_cut, is_skipped):
            self._run_validation()
        self.metrics.end_epoch(progress.step, progress.epoch)
        if not is_early and not is_cut:
            step_schedules(self.state, "epoch", progress.epoch + 1)
        progress.epoch_is_over = True
        if rules.callbacks_end_epoch_first:
            hooks.end_epoch(judging=False)
        hooks.of_module("on_train_epoch_end")
        # What that has logged belongs to this epoch, and callbacks act on it.
        self.metrics.end_epoch(progress.step, progress.epoch)
        if is_early and not is_cut:
            step_schedules(self.state, "epoch", progress.epoch + 1, takes_metric=True)
        if rules.callbacks_end_epoch_first:
            hooks.end_epoch(judging=True)
        else:
            hooks.of_callbacks("on_train_epoch_end")
        self.metrics.end_epoch(progress.step, progress.epoch)
        vars(progress).update(vars(progress.next_epoch()))

    def _validates_at_the_end(self, is_cut: bool, is_skipped: bool) -> bool:
        if self._times is None or (is_skipped and not self._rules.validates_skipped_epoch):
            return False
        if self._rules.ends_cut_epoch and self.state.should_stop and self._stop.is_heard():
            return self._times.is_due_at_a_stop()
        return not is_cut and self._times.is_due_at_the_end()

    def _refuse_no_loss(self) -> None:
        """Refuse a training_step that returned nothing in the whole first epoch."""
        seen, is_first, self._is_first_epoch = self.metrics.losses.without_loss, self._is_first_epoch, False
        if is_first and self.module.automatic_optimization and 0 < self.state.batch_idx <= seen:
            raise DataError(
                f"{type(self.module).__qualname__}.training_step returned None for all {seen} batches of the epoch, "
                "and nothing was trained: return the loss, or set automatic_optimization = False"
            )

    def _epoch_iterator(self) -> Iterator[Any]:
        state, self._data_state = self._data_state, None
        if self.data.made_again(self.progress.epoch):
            self.num_batches = self.state.num_train_batches = self.data.num_train_batches
            if self._times is not None:
                self._times = ValidationTimes(self.settings, self.progress, self.num_batches)
        batches = self.data.train.epoch(self.progress.epoch, self.progress.batch, state)
        iterator = iter(on_device(self.state, batches))
        self._restore_generators()  # of an epoch that was begun before: after what making its iterator draws
        return iterator

    # One window -------------------------------------------------------------------------------------

    def _closure_window(self, size: int, batches: Iterable[Any]) -> None:
        window, first = list(batches), self.state.batch_idx
        outputs: list[Any] = []
        by = divisors(self.state, self.data, size)
        for offset, batch in enumerate(window):
            if self._hooks.starts and self._hooks.skips(batch, first + offset, first):
                return

        def evaluate(index: int) -> Any:
            self._steps.zero_grad(index)
            evaluated: list[Any] = []
            total: Any = 0.0
            # Only the first evaluation is at the parameters that the step began with.
            with self.metrics.discarded() if outputs else nullcontext():
                for offset, batch in enumerate(window):
                    self.metrics.batch, self.state.current_batch = batch, first + offset
                    last = offset + 1 == size
                    output = self.prepared.forward_backward(
                        STEP, batch, first + offset, divisor=by[offset], sync=last
                    )
                    for after in self._hooks.after_backward:
                        after()
                    loss = loss_of(output)
                    total = total if loss is None else total + loss.detach() / by[offset]
                    evaluated.append(output)
            outputs[:] = outputs or evaluated
            self._steps.clip(index)
            return mean_loss(total, self.data_ranks)

        self._steps.step(first + size - 1, closure=evaluate)
        outputs = outputs or [None] * size  # of a step that the module left out
        self.state.batch_idx = self.progress.batch = first + size
        for offset, batch in enumerate(window):
            self._hooks.end(outputs[offset], batch, first + offset)

    def _manual_window(self, size: int, batches: Iterable[Any]) -> None:
        for batch in batches:
            self.state.current_batch = self.state.batch_idx
            if self._hooks.starts and self._hooks.skips(batch, self.state.batch_idx, self.state.batch_idx):
                return
            self.metrics.batch, self._stepped = batch, set()
            outputs = self.prepared.manual_step(STEP, batch, self.state.batch_idx)
            self._finite.check_loss(self.progress.step + 1, outputs)
            self.state.batch_idx += 1
            self.progress.batch = self.state.batch_idx
            if self._stepped:
                self.progress.step += 1
                self.progress.further_steps -= self._rules.counts_each_optimizer
                if self._finite.ends_run:
                    self._finite.check_parameters(self.progress.step)
                self.state.guard.after_step(self.progress.step)
                step_schedules(self.state, "step", self.progress.step, self._stepped)
                self.metrics.end_step(self.progress.step, self.progress.epoch)
                self.state.runtime.session.checkpointer.poll()
            self._hooks.end(outputs, batch, self.state.batch_idx - 1)

    def _count_manual_step(self, index: int) -> None:
        self._stepped.add(index)
        self.progress.further_steps += self._rules.counts_each_optimizer
