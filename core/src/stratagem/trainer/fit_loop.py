"""The training loop.

In outline::

    for epoch in epochs:
        on_train_epoch_start
        for window in windows of `accumulate_grad_batches` batches:
            for batch in window:
                on_train_batch_start
                forward, backward      (gradients are reduced on the window's last batch)
                clip, step, zero_grad, schedulers, log   (after the window's last batch)
                on_train_batch_end
            validate, where val_check_interval says so
        validate, epoch schedulers
        on_train_epoch_end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from stratagem.prepared import loss_of
from stratagem.trainer.manual import ManualOptimizer
from stratagem.trainer.settings import limited

if TYPE_CHECKING:
    from stratagem.data.train import TrainData
    from stratagem.trainer.live import Live
    from stratagem.trainer.trainer import Trainer

STEP = "training_step"


class FitLoop:
    """Runs epochs until one of the limits is reached.

    Args:
        trainer: what callbacks see; its `should_stop` ends the loop after a step.
        live: the stage's objects.
        data: training batches.
        validate: runs a validation; None where there is none.
        resume: called once, when the first epoch's iterator exists, to restore random number
            generators; None where nothing is resumed.
    """

    def __init__(
        self,
        trainer: Trainer,
        live: Live,
        data: TrainData,
        validate: Callable[[], object] | None,
        data_state: Any = None,
        resume: Callable[[], None] | None = None,
    ) -> None:
        self.trainer, self.live, self.data, self.validate = trainer, live, data, validate
        self.settings, self.module = live.settings, live.module
        self.prepared, self.metrics, self.progress = live.prepared, live.metrics, live.progress
        self.num_batches = limited(data.num_batches, self.settings.limit_train_batches)
        self.manual = [
            ManualOptimizer(self.prepared, index, self._count_manual_step)
            for index in range(len(self.prepared.optimizers))
        ]
        self.batch_idx = 0
        self._data_state, self._resume = data_state, resume
        self._stepped = False
        self._step_schedules = any(schedule.interval == "step" for schedule in live.schedules)
        self._clips = self.settings.gradient_clip_val is not None
        self._starts = live.moments.of("on_train_batch_start")
        self._ends = live.moments.of("on_train_batch_end")
        self._interval = self._validation_interval()
        if not self.module.automatic_optimization:
            self._run_window = self._manual_window
        elif live.wants_closure:
            self._run_window = self._closure_window
        else:
            self._run_window = self._automatic_window

    def run(self) -> None:
        """Run until max_epochs or max_steps is reached, or somebody wants to stop."""
        while not self._is_over():
            self.run_epoch()

    def _is_over(self) -> bool:
        epochs, steps = self.settings.epochs, self.settings.max_steps
        return (
            (epochs is not None and self.progress.epoch >= epochs)
            or (steps is not None and self.progress.step >= steps)
            or self.trainer.should_stop
        )

    def run_epoch(self) -> None:
        """Run one epoch, or what is left of one that is resumed."""
        progress, moments = self.progress, self.live.moments
        self.module.train()
        iterator = self._epoch_iterator()
        if progress.batch == 0:
            moments("on_train_epoch_start", self.trainer, self.module)
            self.module.on_train_epoch_start()
        self.batch_idx = progress.batch
        limit = None if self.num_batches is None else self.num_batches - progress.batch
        for size, window in self._windows(iterator, limit):
            self._run_window(size, window)
            if self._interval and self.batch_idx % self._interval == 0 and self.validate is not None:
                self.validate()
            if self.trainer.should_stop or progress.step == self.settings.max_steps:
                break
        else:
            self._end_epoch()
            return
        # Stopped on the way: the epoch only counts as over when there was no batch left.
        if self.num_batches is not None and self.batch_idx == self.num_batches:
            self._end_epoch()

    def _end_epoch(self) -> None:
        progress = self.progress
        every = self.settings.check_val_every_n_epoch
        if self.validate is not None and not self._interval and (progress.epoch + 1) % every == 0:
            self.validate()
        self.metrics.end_epoch(progress.step, progress.epoch)
        metrics = self.metrics.latest() if self.live.schedules else {}
        for schedule in self.live.schedules:
            if schedule.is_due("epoch", progress.epoch + 1):
                schedule.step(metrics)
        self.module.on_train_epoch_end()
        progress.epoch_is_over = True
        self.live.moments("on_train_epoch_end", self.trainer, self.module)
        progress.epoch, progress.batch, progress.epoch_is_over = progress.epoch + 1, 0, False

    def _epoch_iterator(self) -> Iterator[Any]:
        state, self._data_state = self._data_state, None
        resume, self._resume = self._resume, None
        if resume is not None and self.progress.batch == 0:
            # The uninterrupted run drew the epoch's numbers from here.
            resume()
            resume = None
        batches = self.data.epoch(self.progress.epoch, self.progress.batch, state)
        iterator = iter(self.prepared.dataloader(batches))
        if resume is not None:
            resume()
        return iterator

    def _windows(self, iterator: Iterator[Any], limit: int | None) -> Iterator[tuple[int, Iterable[Any]]]:
        """Yield the batches of each optimizer step, and how many they are."""
        most = self.settings.accumulate_grad_batches
        if limit is None or self.live.wants_closure:
            batches = iterator if limit is None else islice(iterator, limit)
            while window := list(islice(batches, most)):
                yield len(window), window
        elif most == 1:
            for batch in islice(iterator, limit):
                yield 1, (batch,)
        else:
            for start in range(0, limit, most):
                size = min(most, limit - start)
                yield size, islice(iterator, size)

    # One window -------------------------------------------------------------------------------------

    def _automatic_window(self, size: int, batches: Iterable[Any]) -> None:
        trainer, module, metrics = self.trainer, self.module, self.metrics
        forward_backward, idx = self.prepared.forward_backward, self.batch_idx
        for position, batch in enumerate(batches, 1):
            for start in self._starts:
                start(trainer, module, batch, idx)
            metrics.batch = batch
            outputs = forward_backward(STEP, batch, idx, divisor=size, sync=position == size)
            idx += 1
            self.batch_idx = idx
            if position == size:
                self._step()
            for end in self._ends:
                end(trainer, module, outputs, batch, idx - 1)

    def _closure_window(self, size: int, batches: Iterable[Any]) -> None:
        window, first = list(batches), self.batch_idx
        outputs: list[Any] = []
        for offset, batch in enumerate(window):
            for start in self._starts:
                start(self.trainer, self.module, batch, first + offset)

        def evaluate(index: int) -> Any:
            self.prepared.zero_grad(index)
            evaluated: list[Any] = []
            total: Any = 0.0
            for offset, batch in enumerate(window):
                self.metrics.batch = batch
                last = offset + 1 == size
                output = self.prepared.forward_backward(STEP, batch, first + offset, divisor=size, sync=last)
                loss = loss_of(output)
                total = total if loss is None else total + loss.detach() / size
                evaluated.append(output)
            # Only the first evaluation is at the parameters that the step began with.
            self.metrics.muted = True
            outputs[:] = outputs or evaluated
            if self._clips:
                self.prepared.clip(index, self.settings.clipping)
            return total

        try:
            self._step(closure=evaluate)
        finally:
            self.metrics.muted = False
        self.batch_idx = self.progress.batch = first + size
        for offset, batch in enumerate(window):
            for end in self._ends:
                end(self.trainer, self.module, outputs[offset], batch, first + offset)

    def _manual_window(self, size: int, batches: Iterable[Any]) -> None:
        for batch in batches:
            for start in self._starts:
                start(self.trainer, self.module, batch, self.batch_idx)
            self.metrics.batch, self._stepped = batch, False
            outputs = self.prepared.manual_step(STEP, batch, self.batch_idx)
            self.batch_idx += 1
            self.progress.batch = self.batch_idx
            if self._stepped:
                self.progress.step += 1
                self.metrics.end_step(self.progress.step, self.progress.epoch)
            for end in self._ends:
                end(self.trainer, self.module, outputs, batch, self.batch_idx - 1)

    def _count_manual_step(self) -> None:
        self._stepped = True

    def _step(self, closure: Callable[[int], Any] | None = None) -> None:
        """Step every optimizer, its schedulers and the log."""
        prepared, progress = self.prepared, self.progress
        applied = False
        for index in range(len(prepared.optimizers)):
            if self._clips and closure is None:
                prepared.clip(index, self.settings.clipping)
            bound = None if closure is None else (lambda index=index: closure(index))
            applied = prepared.step(index, bound) or applied
        for index in range(len(prepared.optimizers)):
            prepared.zero_grad(index)
        progress.batch = self.batch_idx
        if not applied:
            return
        progress.step += 1
        if self._step_schedules:
            metrics = self.metrics.latest() if any(s.monitor for s in self.live.schedules) else {}
            for schedule in self.live.schedules:
                if schedule.is_due("step", progress.step):
                    schedule.step(metrics)
        self.metrics.end_step(progress.step, progress.epoch)

    def _validation_interval(self) -> int:
        interval = self.settings.val_check_interval
        if isinstance(interval, float):
            return max(1, limited(self.num_batches, interval) or 1)
        return interval or 0
