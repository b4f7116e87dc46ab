"""`Metrics`: collects logged values, reduces them over ranks, and passes them to the loggers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.batch_size import batch_size_of
from stratagem_sharding.part_of_batch import refuse_in_chunk
from torch import nn

from stratagem import LossSum
from stratagem.errors import LoggingError
from stratagem_trainer.loggers.base import Logger
from stratagem_trainer.loops.loss_watch import LossWatch
from stratagem_trainer.metrics.accumulator import Value, value_to_keep
from stratagem_trainer.metrics.latest import LatestValues, by_key
from stratagem_trainer.metrics.metric_objects import (
    collect_states,
    is_metric_object,
    path_in,
    restore_states,
    states_kept,
    value_of_step,
)
from stratagem_trainer.metrics.reducer import Reducer, refuse_shared
from stratagem_trainer.metrics.reduction import PartialReduction, RankLog
from stratagem_trainer.metrics.row_buffer import RowBuffer
from stratagem_trainer.metrics.scope import LOADER, REDUCTIONS, Scope

if TYPE_CHECKING:
    from stratagem import Collectives


class Metrics:
    """Collects what steps log, and passes rows to the loggers in groups.

    Values stay tensors until a group is written or a user reads them, so that logging never waits for the device. On
    several ranks, each logging point is one collective, whatever is logged. Logging points are every `every` steps,
    and the end of an epoch or evaluation.

    Args:
        collectives: collectives of the ranks that read different batches.
        loggers: empty on all ranks but 0.
        every: number of steps per row; 0 writes no rows for steps.
        module: has the metric objects that are logged.
        evaluation_step: `LoopPolicy.evaluation_step`.
    """

    def __init__(
        self,
        collectives: Collectives,
        loggers: list[Logger],
        every: int,
        module: nn.Module | None = None,
        evaluation_step: Callable[[int, int], int] = lambda step, batch: step,
    ) -> None:
        self.batch: Any = None
        """The current batch. Its size is the default weight in means."""
        self.muted = False
        self._evaluation_step = evaluation_step
        self._eval_batches: dict[tuple[str, int], int] = {}
        """Stage and index of a loader → number of its batches that evaluations have read so far."""
        self._collectives, self._is_alone = collectives, collectives.world_size == 1
        self._every = every or sys.maxsize
        self._module = nn.Module() if module is None else module
        self._train = Scope("train")
        self._scope = self._train
        self._latest = LatestValues()
        self._rows = RowBuffer(loggers, self._latest.unlogged)
        self._ended: tuple[int, int, dict[str, Value]] | None = None
        self._is_between = False
        """Whether the last completed step isn't a logging point."""
        self.losses = LossWatch(lambda: self._train.step.values)
        self._reducer = Reducer(collectives, self._module, self.losses)

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        sync_dist: bool | None = None,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """See `Module.log`."""
        if self.muted:
            return
        scope = self._scope
        if rank_zero_only:
            if sync_dist:
                raise LoggingError(f"{name!r} is logged with rank_zero_only and sync_dist: leave out one")
            if self._collectives.rank != 0:
                return
            sync_dist = False
        if add_dataloader_idx and scope.suffix:
            name += scope.suffix
        weight: Value | None = None
        if type(value) is not torch.Tensor:
            if isinstance(value, LossSum):
                if reduce_fx not in ("mean", torch.mean) or batch_size is not None:
                    raise LoggingError(
                        f"{name!r} is logged with a LossSum, whose mean goes by its weight: leave out reduce_fx and "
                        "batch_size, or log a number"
                    )
                weight, value = value_to_keep(torch.as_tensor(value.weight)), value.mean()
            elif hasattr(value, "full_tensor"):
                value = value.full_tensor()  # a DTensor's value is the same on every rank
            elif is_metric_object(value):
                given = (prog_bar, on_step, on_epoch, reduce_fx, sync_dist, logger)
                self._log_object(name, value, given, metric_attribute)
                return
        if type(reduce_fx) is not str:
            reduce_fx = REDUCTIONS.get(reduce_fx, reduce_fx)
        how = (name, prog_bar, on_step, on_epoch, reduce_fx, sync_dist, logger, scope.in_step)
        options = scope.asked.get(how)
        if options is None:
            options = scope.read_options(name, value, *how[1:7])
            scope.asked[how] = options
            if prog_bar or not logger:
                self._latest.note(name, options)
        kept = value_to_keep(value)
        if not options.on_epoch:
            self._latest.values[name] = kept
        elif options.on_step:
            self._latest.values[name] = self._latest.values[options.step_key(name)] = kept
        if weight is None:
            weight = self._weight(batch_size) if options.weighs else 1
        scope.add(name, kept, weight, options)

    def _log_object(self, name: str, metric: Any, how: Any, given: str | None) -> None:
        """Log a metric object: the value of this batch for the step, and the object itself for the epoch."""
        refuse_in_chunk("self.log with a metric object")
        scope = self._scope
        options = scope.read_options(name, 0.0, *how)
        if options.on_step:
            value = value_of_step(name, metric)
            # Only the epoch's value is reduced over ranks, by the metric object itself.
            scope.add(name, value, 1, options._replace(on_epoch=False))
            self._latest.take(dict.fromkeys((name, options.step_key(name)), scope.step.values[name]))
        if options.on_epoch and scope.objects.get(name) is not metric:
            path_in(self._module, metric, name, given)
            scope.objects[name] = metric
        self._latest.note(name, options)

    def _weight(self, batch_size: int | None) -> int:
        if batch_size is None:
            batch_size = batch_size_of(self.batch)
        return 1 if batch_size is None else batch_size

    # Points in time ---------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """Attribute what is logged from here on to training steps."""
        self._train.in_step = True

    def end_steps(self) -> None:
        """Attribute what is logged from here on to the training epoch."""
        self._train.in_step, self.batch = False, None

    def end_step(self, step: int, epoch: int) -> None:
        """End a training step. Collective if the step is a logging point."""
        self._is_between = step % self._every != 0
        if not self._is_between and self._is_alone:
            self._ended = step, epoch, {}  # nothing to reduce; `log_late` and `flush` read the step's values
            if self.losses.is_due:
                self._reducer.look_at_losses()
        elif not self._is_between:
            self._ended = step, epoch, self._reduced_step(step)

    def log_late(self) -> None:
        """Write the step's row, with what callbacks have logged since its end. Collective after a logging point."""
        if self._ended is not None:
            step, epoch, values = self._ended
            if self._is_alone:
                values = self._train.take_values()
            else:
                values, self._ended = {**values, **self._reduced_step(step)}, (step, epoch, {})
            if values:
                self._rows.write(step, epoch, values)

    def end_late(self) -> None:
        """Call `log_late`, and attribute what is logged from here on to the next step."""
        if self._is_between:
            if self._train.step.values:
                self._train.drop_step()
            self._is_between = False
        elif self._ended is not None:
            self.log_late()
            self._ended = None

    def _reduced_step(self, step: int) -> dict[str, Value]:
        """Reduce what the step has logged over several ranks, and return it by the keys in files. Collective."""
        logged, weights = self._train.take_step()
        values = self._train.by_step_key(logged)
        options, names = self._train.options, dict(zip(values, logged))
        synced = {
            key: PartialReduction(options(name).reduce_fx, logged[name], weights[name])
            for key, name in names.items()
            if options(name).sync_dist
        }
        own = {key: value for key, value in values.items() if key not in synced}
        reduced = self._reducer.reduce(RankLog(synced, own), f"step {step}").values
        self._latest.take(reduced)
        self._latest.take({names[key]: value for key, value in reduced.items() if key in names})
        return {**values, **reduced}

    def end_epoch(self, step: int, epoch: int) -> None:
        """Reduce what was logged in the training epoch, and write it. Collective."""
        steps, values = self._reducer.scope(self._train, "the end of the epoch")
        self._take([(step, row) for row in steps], values, step, epoch)

    @contextmanager
    def evaluation(self, stage: str, loader: int | None = None) -> Iterator[Scope]:
        """Attribute what is logged in the context to an evaluation, or to one of its loaders. A context manager."""
        suffix = "" if loader is None else f"{LOADER}{loader}"
        before, batch, self._scope = self._scope, self.batch, Scope(stage, suffix)
        try:
            yield self._scope
        finally:
            self._scope, self.batch = before, batch

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the latest values and the metric objects at the end. A context manager."""
        with self._latest.kept(), states_kept(self._module):
            yield

    @contextmanager
    def discarded(self) -> Iterator[None]:
        """Drop what is logged in the context, and restore the metric objects at its end. A context manager.

        It is for batches that don't count.
        """
        before, self.muted = self.muted, True
        try:
            with states_kept(self._module):
                yield
        finally:
            self.muted = before

    def end_evaluation(
        self, scope: Scope, step: int, epoch: int, of_loaders: Sequence[Scope] = ()
    ) -> list[dict[str, float]]:
        """Reduce what an evaluation logged. Collective.

        Args:
            scope: what the evaluation logged; with several loaders, only what it logged outside of their batches.
            step: completed optimizer steps.
            epoch: index of the current epoch.
            of_loaders: what was logged with each loader, if there are several.

        Returns:
            One dict per loader: what was logged with it, and what was logged outside of any loader's batches.
        """
        where = "the end of the evaluation"
        steps, values = self._reducer.scope(scope, where)
        of_steps, results = [steps], []
        for index, each in enumerate(of_loaders):
            its_steps, its_values = self._reducer.scope(each, f"{where} of loader {index}")
            refuse_shared(values, its_values)
            of_steps.append(its_steps)
            values.update(its_values)
            results.append(by_key(its_steps, its_values))
        rows = self._numbered(list(zip((*of_loaders, scope), (*of_steps[1:], of_steps[0]))), step)
        everything = self._take(rows, values, step, epoch)
        of_any = everything.keys() - {key for theirs in results for key in theirs}
        shared = {key: everything[key] for key in everything if key in of_any}
        return [{**theirs, **shared} for theirs in results] or [everything]

    def _numbered(
        self, of_scopes: Sequence[tuple[Scope, Sequence[Mapping[str, float]]]], step: int
    ) -> list[tuple[int, Mapping[str, float]]]:
        """Return the rows of an evaluation's single steps, each with the step number to write it with."""
        numbered = []
        for index, (scope, rows) in enumerate(of_scopes):
            first = self._eval_batches.get((scope.stage, index), 0)
            self._eval_batches[scope.stage, index] = first + scope.num_batches
            numbered += [
                (self._evaluation_step(step, first + offset), row) for offset, row in enumerate(rows) if row
            ]
        return numbered

    def _take(
        self,
        steps: Sequence[tuple[int, Mapping[str, float]]],
        values: Mapping[str, float],
        step: int,
        epoch: int,
    ) -> dict[str, float]:
        """Write the rows and the reduced values of a scope, and update the latest values with them."""
        for number, row in steps:
            self._rows.write(number, epoch, dict(row))
        if values:
            self._rows.write(step, epoch, dict(values))
        self._latest.take(latest := by_key([row for _, row in steps], values))
        return latest

    # Output ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Pass all rows to the loggers, and check the losses. Waits for the device."""
        if self._is_alone:
            self.log_late()
        elif self._ended is not None and self._ended[2]:
            self._rows.write(*self._ended)  # an exception ended the stage before `log_late`
            self._ended = None
        self._reducer.look_at_losses()
        self._rows.hand_out()

    def latest(self) -> dict[str, float]:
        """Return the latest value of each key. Waits for the device."""
        return self._latest.all()

    def logged(self) -> dict[str, float]:
        """Return the latest value of each key that loggers get. Waits for the device."""
        return self._latest.logged()

    def on_bar(self) -> dict[str, float]:
        """Return the latest value of each key that was logged with `prog_bar`. Waits for the device."""
        return self._latest.on_bar()

    def state_dict(self) -> dict[str, Any]:
        """Return what was accumulated in this epoch so far, and the latest values."""
        return {
            "sums": self._train.state(),
            "latest": self.latest(),
            "objects": collect_states(self._module),
            "logged_objects": self._train.objects_state(self._module),
        }

    def load_state_dict(self, state: dict[str, Any], *, with_epoch: bool) -> None:
        """Restore what `state_dict` returned. `with_epoch` includes the accumulated values of this rank.

        Those are valid only with the same number of ranks.
        """
        self._latest.take(state.get("latest", {}))
        if with_epoch:
            self._train.load(state.get("sums", {}))
            restore_states(self._module, state.get("objects", {}))
            self._train.load_objects(state.get("logged_objects", {}), self._module)
