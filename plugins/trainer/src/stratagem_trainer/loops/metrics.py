"""`Metrics`: what a module logs, from the step to the loggers, across ranks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stratagem.sdk.tensors import batch_size_of
from stratagem_trainer.loggers.base import Logger, Row
from stratagem_trainer.loops.accumulator import Value, as_float
from stratagem_trainer.loops.fused import LogReduction, Partial, RankLog, ReducedLog
from stratagem_trainer.loops.loss_watch import LossWatch
from stratagem_trainer.scope import Scope

if TYPE_CHECKING:
    from stratagem import Collectives

FLUSH_ROWS = 256
FLUSH_SECONDS = 1.0


class Metrics:
    """Takes what steps log, and hands rows to the loggers in groups.

    Values stay tensors until a group is written or somebody asks, so that logging never waits for
    the device. Where ranks are several, each logging point (every `every` steps, and the end of an
    epoch or evaluation) is one collective, whatever is logged.
    """

    def __init__(self, collectives: Collectives, loggers: list[Logger], every: int) -> None:
        self.batch: Any = None
        """The current batch: its size weighs means."""
        self.muted = False
        self._collectives = collectives
        self._reduction = LogReduction(collectives)
        self._loggers = loggers
        self._every = every
        self._train = Scope("train")
        self._scope = self._train
        self._latest: dict[str, Value] = {}
        self._on_bar: dict[str, None] = {}
        self._rows: list[tuple[int, int, dict[str, Value]]] = []
        self._flushed_at = time.perf_counter()
        self._ended: tuple[int, int, dict[str, Value]] | None = None
        self._is_between = False
        """A step has just ended that is no logging point."""
        self.losses = LossWatch(lambda: self._train.step.values)

    def log(
        self,
        name: str,
        value: torch.Tensor | float,
        *,
        prog_bar: bool = False,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str = "mean",
        sync_dist: bool | None = None,
        batch_size: int | None = None,
    ) -> None:
        """See `Module.log`."""
        if self.muted:
            return
        if type(value) is not torch.Tensor and hasattr(value, "full_tensor"):
            value = value.full_tensor()  # of a DTensor every rank logs the whole
        scope = self._scope
        options = scope.read_options(name, value, prog_bar, on_step, on_epoch, reduce_fx, sync_dist)
        if isinstance(value, torch.Tensor):
            # A copy: the caller may go on to change its tensor in place.
            copy = value.detach().clone()
            kept: Value = copy.reshape(()) if copy.dim() else copy
        else:
            kept = float(value)
        if options.on_step or not options.on_epoch:
            self._latest[name] = kept
            if options.on_epoch:
                self._latest[options.step_key(name)] = kept
        if prog_bar:
            for key in options.keys(name):
                self._on_bar[key] = None
        weighs = options.reduce_fx == "mean" and (options.on_epoch or options.sync_dist)
        scope.add(name, kept, self._weight(batch_size) if weighs else 1, options)

    def _weight(self, batch_size: int | None) -> int:
        if batch_size is None:
            batch_size = batch_size_of(self.batch)
        return 1 if batch_size is None else batch_size

    # Points in time ---------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """From here on training steps run, and what is logged is theirs."""
        self._train.in_step = True

    def end_steps(self) -> None:
        """From here on what is logged is the training epoch's."""
        self._train.in_step, self.batch = False, None

    def end_step(self, step: int, epoch: int) -> None:
        """End a training step; a logging point every so many. Collective where it is one."""
        self._is_between = step % self._every != 0
        if self._is_between:
            self._train.take_step()
        else:
            self._ended = step, epoch, self._reduced_step(step)

    def log_late(self) -> None:
        """Write the step's row, with what callbacks have logged since its end. Collective after a logging point."""
        if self._ended is not None:
            step, epoch, values = self._ended
            if self._collectives.world_size > 1 or self._train.step.values:
                values = {**values, **self._reduced_step(step)}
            if values:
                self._write(step, epoch, values)
            self._ended = step, epoch, {}

    def end_late(self) -> None:
        """As `log_late`; what is logged from here on is the next step's."""
        self.log_late()
        self._ended = None
        if self._is_between:
            self._train.take_step()
            self._is_between = False

    def _reduced_step(self, step: int) -> dict[str, Value]:
        """Take what the step has logged, by the names that files have. Collective."""
        options, (logged, weights) = self._train.options, self._train.take_step()
        names = {options(name).step_key(name): name for name in logged}
        values = {key: logged[name] for key, name in names.items()}
        if self._collectives.world_size > 1:
            synced = {
                key: Partial(options(name).reduce_fx, logged[name], weights[name])
                for key, name in names.items()
                if options(name).sync_dist
            }
            own = {key: value for key, value in values.items() if key not in synced}
            reduced = self._reduce(RankLog(synced, own), f"step {step}").values
            values.update(reduced)
            self._latest.update(reduced)
            self._latest.update({names[key]: value for key, value in reduced.items() if key in names})
        elif self.losses.is_due:
            self._look_at_losses()
        return values

    def end_epoch(self, step: int, epoch: int) -> None:
        """Reduce what was logged over the training epoch. Collective."""
        self._end_scope(self._train, step, epoch, "the end of the epoch")

    @contextmanager
    def evaluation(self, stage: str) -> Iterator[Scope]:
        """While an evaluation runs: what is logged is the evaluation's."""
        before, batch, self._scope = self._scope, self.batch, Scope(stage)
        try:
            yield self._scope
        finally:
            self._scope, self.batch = before, batch

    def end_evaluation(self, scope: Scope, step: int, epoch: int) -> dict[str, float]:
        """Reduce what an evaluation logged and return it. Collective."""
        return self._end_scope(scope, step, epoch, "the end of the evaluation")

    def _end_scope(self, scope: Scope, step: int, epoch: int, where: str) -> dict[str, float]:
        parts, rows = scope.take_sums(), scope.take_rows()
        names = {scope.options(name).epoch_key(name): name for name in parts}
        own = {key: parts[name] for key, name in names.items() if not scope.options(name).sync_dist}
        synced = {key: parts[name] for key, name in names.items() if key not in own}
        values = {key: part.local() for key, part in own.items()}
        if self._collectives.world_size > 1:
            log = RankLog(synced, values, scope.had_batches or scope.is_training, rows=len(rows))
            reduced = self._reduce(log, where)
            values = {**values, **reduced.values}
            steps = self._reduction.merge_rows(rows) if reduced.rows else []
        else:
            self._look_at_losses()
            values.update({key: part.local() for key, part in synced.items()})
            steps = [{key: part.local() for key, part in row.items()} for row in rows]
        for row in steps:
            self._write(step, epoch, dict(row))
        values.update({names[key]: value for key, value in values.items() if key in names})
        if values:
            self._write(step, epoch, dict(values))
        # Of single steps the last value, and where a name has both, the epoch's is the name's.
        values = {**{key: value for row in steps for key, value in row.items()}, **values}
        self._latest.update(values)
        return values

    def _reduce(self, log: RankLog, where: str) -> ReducedLog:
        bad = self.losses.look()
        reduced = self._reduction.reduce(replace(log, nan_step=bad.step if bad else 0), where)
        first = min((step for step in reduced.nan_steps if step), default=0)
        if first and not self.losses.is_told:
            self.losses.is_told = True
            if self._collectives.node_rank == self._collectives.local_rank == 0:
                ranks = [str(rank) for rank, step in enumerate(reduced.nan_steps) if step == first]
                told = str(bad) if bad and bad.step == first else f"the loss isn't finite at step {first}"
                _warn(f"{told}, on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}")
        return reduced

    def _look_at_losses(self) -> None:
        """Say once that a loss isn't finite; waits for the device."""
        bad = self.losses.look()
        if bad is not None and not self.losses.is_told:
            self.losses.is_told = True
            _warn(
                str(bad) + (f", on rank {self._collectives.rank}" if self._collectives.world_size > 1 else "")
            )

    # Out --------------------------------------------------------------------------------------------

    def _write(self, step: int, epoch: int, values: dict[str, Value]) -> None:
        if not self._loggers:
            return
        self._rows.append((step, epoch, values))
        if len(self._rows) >= FLUSH_ROWS or time.perf_counter() - self._flushed_at > FLUSH_SECONDS:
            self._hand_out()

    def flush(self) -> None:
        """Hand all rows to the loggers, and look at the losses; waits for the device."""
        if self._ended is not None and self._ended[2]:
            self._write(*self._ended)  # ended by an exception
            self._ended = None
        self._look_at_losses()
        self._hand_out()

    def _hand_out(self) -> None:
        rows = [
            Row(step, epoch, {name: as_float(value) for name, value in values.items()})
            for step, epoch, values in self._rows
        ]
        self._rows.clear()
        self._flushed_at = time.perf_counter()
        if rows:
            for logger in self._loggers:
                logger.write(rows)

    def latest(self) -> dict[str, float]:
        """The latest value of each key; waits for the device."""
        latest = {name: as_float(value) for name, value in self._latest.items()}
        self._latest = {**latest}
        return latest

    def on_bar(self) -> dict[str, float]:
        """The latest value of each key that was logged with `prog_bar`; waits for the device."""
        return {name: as_float(self._latest[name]) for name in self._on_bar if name in self._latest}

    def state_dict(self) -> dict[str, Any]:
        """What was accumulated in this epoch so far, and the latest values."""
        return {"sums": self._train.state(), "latest": self.latest()}

    def load_state_dict(self, state: dict[str, Any], *, with_epoch: bool) -> None:
        """Take up what `state_dict` returned; the accumulated part only at the same world size."""
        self._latest.update(state.get("latest", {}))
        if with_epoch:
            self._train.load(state.get("sums", {}))


def _warn(told: str) -> None:
    warnings.warn(
        f"{told}: the run goes on with it; Trainer(terminate_on_nan=True) ends it there",
        UserWarning,
        stacklevel=3,
    )
