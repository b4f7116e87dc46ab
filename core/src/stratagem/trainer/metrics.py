"""`Metrics`: what a module logs, from the step to the loggers, across ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from stratagem.data.size import batch_size_of
from stratagem.errors import LoggingError
from stratagem.loggers.base import Logger, Row
from stratagem.trainer.fused import Partial, reduce_over_ranks

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives

FLUSH_ROWS = 256
FLUSH_SECONDS = 1.0

Value = Any
"""A float, or a detached tensor with one element that nobody has waited for yet."""


class How(NamedTuple):
    """How a name is logged; the same each time."""

    prog_bar: bool
    on_step: bool
    on_epoch: bool
    reduce_fx: str
    sync_dist: bool


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
        self._loggers = loggers
        self._every = every
        self._train = _Scope(is_training=True)
        self._scope = self._train
        self._latest: dict[str, Value] = {}
        self._on_bar: dict[str, None] = {}
        self._rows: list[tuple[int, int, dict[str, Value]]] = []
        self._flushed_at = time.perf_counter()

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
        how = How(
            prog_bar,
            scope.is_training if on_step is None else on_step,
            not scope.is_training if on_epoch is None else on_epoch,
            reduce_fx,
            not scope.is_training if sync_dist is None else sync_dist,
        )
        if scope.how.get(name) != how:
            self._first(name, value, how)
        kept: Value = value.detach() if isinstance(value, torch.Tensor) else float(value)
        self._latest[name] = kept
        if how.on_step:
            scope.step[name] = kept
            if how.sync_dist:
                scope.weights[name] = self._weight(batch_size)
        if how.on_epoch:
            scope.add(name, kept, self._weight(batch_size) if how.reduce_fx == "mean" else 1, how.reduce_fx)

    def _first(self, name: str, value: torch.Tensor | float, how: How) -> None:
        known = self._scope.how.get(name)
        if known is not None:
            raise LoggingError(f"{name!r} was logged as {known} before, and as {how} now: log it in one way")
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise LoggingError(
                f"{name!r} has shape {tuple(value.shape)}: log a number, or a tensor with one element"
            )
        if how.reduce_fx not in ("mean", "sum", "min", "max"):
            raise LoggingError(
                f"{name!r} has reduce_fx={how.reduce_fx!r}, which is none of mean, sum, min, max"
            )
        self._scope.how[name] = how
        if how.prog_bar:
            self._on_bar[name] = None

    def _weight(self, batch_size: int | None) -> int:
        if batch_size is None:
            batch_size = batch_size_of(self.batch)
        return 1 if batch_size is None else batch_size

    # Points in time ---------------------------------------------------------------------------------

    def end_step(self, step: int, epoch: int) -> None:
        """End a training step; a logging point every so many. Collective where it is one."""
        scope = self._train
        if step % self._every:
            scope.step.clear()
            return
        if self._collectives.world_size > 1:
            parts = {
                name: Partial(scope.how[name].reduce_fx, value, scope.weights[name])
                for name, value in scope.step.items()
                if scope.how[name].sync_dist
            }
            synced = reduce_over_ranks(self._collectives, parts, f"step {step}")
            scope.step.update(synced)
            self._latest.update(synced)
        if scope.step:
            self._write(step, epoch, scope.step)
            scope.step = {}

    def end_epoch(self, step: int, epoch: int) -> None:
        """Reduce what was logged over the training epoch. Collective."""
        self._end_scope(self._train, step, epoch, "the end of the epoch")

    @contextmanager
    def evaluation(self) -> Iterator[_Scope]:
        """While an evaluation runs: what is logged is the evaluation's."""
        before, batch, self._scope = self._scope, self.batch, _Scope(is_training=False)
        try:
            yield self._scope
        finally:
            self._scope, self.batch = before, batch

    def end_evaluation(self, scope: _Scope, step: int, epoch: int) -> dict[str, float]:
        """Reduce what an evaluation logged and return it. Collective."""
        return self._end_scope(scope, step, epoch, "the end of the evaluation")

    def _end_scope(self, scope: _Scope, step: int, epoch: int, where: str) -> dict[str, float]:
        parts = scope.take()
        values = {name: part.local() for name, part in parts.items() if not scope.how[name].sync_dist}
        shared = {name: part for name, part in parts.items() if scope.how[name].sync_dist}
        if self._collectives.world_size > 1:
            values.update(reduce_over_ranks(self._collectives, shared, where))
        else:
            values.update({name: part.local() for name, part in shared.items()})
        if not values:
            return {}
        self._latest.update(values)
        both = {name for name in values if scope.how[name].on_step}
        row = {f"{name}_epoch" if name in both else name: value for name, value in values.items()}
        self._write(step, epoch, row)
        return values

    # Out --------------------------------------------------------------------------------------------

    def _write(self, step: int, epoch: int, values: dict[str, Value]) -> None:
        if not self._loggers:
            return
        self._rows.append((step, epoch, values))
        if len(self._rows) >= FLUSH_ROWS or time.perf_counter() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand all rows to the loggers; waits for the device."""
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
        """The latest value of each name; waits for the device."""
        self._latest = {name: as_float(value) for name, value in self._latest.items()}
        return dict(self._latest)

    def on_bar(self) -> dict[str, float]:
        """The latest value of each name that was logged with `prog_bar`; waits for the device."""
        return {name: as_float(self._latest[name]) for name in self._on_bar if name in self._latest}

    def state_dict(self) -> dict[str, Any]:
        """What was accumulated in this epoch so far, and the latest values."""
        partial = {name: list(part) for name, part in self._train.parts().items()}
        return {"epoch": partial, "latest": self.latest()}

    def load_state_dict(self, state: dict[str, Any], *, with_epoch: bool) -> None:
        """Take up what `state_dict` returned; the accumulated part only at the same world size."""
        self._latest.update(state.get("latest", {}))
        if with_epoch:
            self._train.load({name: Partial(*part) for name, part in state.get("epoch", {}).items()})


class _Scope:
    """What is logged between two reductions: a training epoch, or an evaluation."""

    def __init__(self, is_training: bool) -> None:
        self.is_training = is_training
        self.how: dict[str, How] = {}
        self.step: dict[str, Value] = {}
        self.weights: dict[str, int] = {}
        self._sums: dict[str, list[Value]] = {}

    def add(self, name: str, value: Value, weight: int, op: str) -> None:
        entry = self._sums.get(name)
        if entry is None:
            # A copy: the caller may go on to change its tensor in place.
            self._sums[name] = [op, value * weight if op == "mean" else value + 0, weight]
            return
        if op == "mean":
            entry[1] = entry[1] + value * weight
        elif op == "sum":
            entry[1] = entry[1] + value
        elif op == "min":
            entry[1] = min(entry[1], value)
        else:
            entry[1] = max(entry[1], value)
        entry[2] += weight

    def parts(self) -> dict[str, Partial]:
        return {
            name: Partial(op, as_float(total) / weight if op == "mean" else as_float(total), weight)
            for name, (op, total, weight) in self._sums.items()
        }

    def take(self) -> dict[str, Partial]:
        parts = self.parts()
        self._sums.clear()
        return parts

    def load(self, parts: dict[str, Partial]) -> None:
        for name, part in parts.items():
            self.add(name, part.value, part.weight, part.op)


def as_float(value: Value) -> float:
    """Convert a logged value, waiting for the device where it is a tensor."""
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)
