"""Wrappers that time the objects which the extension's hooks return."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable

import torch
from stratagem_sharding.batch_size import batch_size_of
from torch import nn

from stratagem import CheckpointerWrapper, CollectivesWrapper, PreparedWrapper
from stratagem_report.phases import (
    BACKWARD,
    CHECKPOINT,
    COMMUNICATION,
    DATA,
    FORWARD,
    FORWARD_BACKWARD,
    LOAD,
    OPTIMIZER,
    START,
    VALIDATION,
)
from stratagem_report.torch_private import at_backward_end

if TYPE_CHECKING:
    from stratagem import Checkpoint, CheckpointReader, Clipping, Collectives, Prepared
    from stratagem_report.recording.recorder import Recorder


class RecordedPrepared(PreparedWrapper):
    """Times the calls that the loop makes for each step.

    Args:
        inner: the strategy's prepared model.
        recorder: must be open.
    """

    def __init__(self, inner: Prepared, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder, self._clock = recorder, recorder.clock
        self._phase = FORWARD
        """Phase with which `forward_backward` begins: the forward, if its end can be seen."""
        self._calls = -1
        """Number of calls of the module within a `forward_backward`; −1 outside of one."""
        self._syncs = True
        self._thread = get_ident()
        self._waits = recorder.world_size > 1
        self._at_backward = at_backward_end(self._wait)
        self._undo: Callable[[], None] | None = None

    def watch_forward(self, module: nn.Module) -> None:
        """Separate forward and backward at the end of `module`'s call, until `release`."""
        self._undo = module.register_forward_hook(self.end_forward).remove

    def release(self) -> None:
        if self._undo is not None:
            self._undo()
        self.inner.release()

    def end_forward(self, module: Any, args: Any, output: Any) -> None:
        """Begin the backward's phase."""
        if self._calls < 0 or self._phase != FORWARD or get_ident() != self._thread:
            return
        self._calls += 1
        if self._calls == 1:
            self._clock.enter(BACKWARD)
            if self._syncs:
                self._watch(output)

    def _watch(self, output: Any) -> None:
        """Find out when a backward has computed all gradients: from then on it waits for communication."""
        if not self._waits:
            return
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.register_hook(self._at_backward)  # type: ignore[no-untyped-call]  # torch has no types for it

    def _wait(self) -> None:
        if self._clock.phase == BACKWARD:
            self._clock.enter(COMMUNICATION)

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        self._recorder.before_forward()
        before, self._calls, self._syncs = self._clock.enter(self._phase), 0, sync
        try:
            return self.inner.forward_backward(*args, divisor=divisor, sync=sync)
        finally:
            self._clock.leave(before)
            if self._calls != 1:
                # The strategy called the module never or several times: no moment separates forward and backward.
                self._phase = FORWARD_BACKWARD
            self._calls = -1

    def manual_step(self, *args: Any) -> Any:
        self._recorder.before_forward()
        before = self._clock.enter(FORWARD)
        try:
            return self.inner.manual_step(*args)
        finally:
            self._clock.leave(before)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._recorder.before_forward()
        return self._timed(FORWARD, self.inner.forward, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self._timed(VALIDATION, self.inner.evaluate, *args, **kwargs)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        before = self._clock.enter(VALIDATION)
        try:
            with self.inner.evaluating():
                yield
        finally:
            self._clock.leave(before)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        before = self._clock.enter(BACKWARD)
        try:
            self._watch(loss)
            self.inner.backward(loss, **kwargs)
        finally:
            self._clock.leave(before)

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        before = self._clock.enter(OPTIMIZER)
        try:
            return self.inner.clip(index, clipping)
        finally:
            self._clock.leave(before)

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        before = self._clock.enter(OPTIMIZER)
        try:
            return self.inner.step(index, closure)
        finally:
            self._clock.leave(before)
            self._recorder.stepped = True

    def dataloader(self, loader: Iterable[Any]) -> Iterable[Any]:
        return _RecordedLoader(self.inner.dataloader(loader), self._recorder)

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self._timed(LOAD, self.inner.load, reader, state, model_only=model_only)
        if not model_only:
            self._recorder.event("loaded", path=reader.path)

    def _timed(self, phase: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = self._clock.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            self._clock.leave(before)


class _RecordedLoader:
    def __init__(self, loader: Iterable[Any], recorder: Recorder) -> None:
        self._loader, self._recorder = loader, recorder

    def __iter__(self) -> Iterator[Any]:
        recorder, clock = self._recorder, self._recorder.clock
        batches, end = None, object()
        while True:
            if clock.phase <= START:
                recorder.before_data()
            before = clock.enter(DATA)
            try:
                batches = iter(self._loader) if batches is None else batches
                batch = next(batches, end)
            finally:
                clock.leave(before)
            if batch is end:
                return
            if clock.phase < START:
                recorder.samples += batch_size_of(batch) or 0
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # an Iterable without a length raises TypeError here


class RecordedCollectives(CollectivesWrapper):
    """Times the collective calls of the loop, of callbacks and of users, but not those inside strategies.

    Args:
        inner: the wrapped collectives.
        recorder: notified when the run is over.
    """

    def __init__(self, inner: Collectives, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder
        self._data: tuple[Collectives, Collectives] | None = None

    @property
    def data(self) -> Collectives:
        inner = self.inner.data
        if inner is self.inner:
            return self
        if self._data is None or self._data[0] is not inner:
            self._data = inner, _OfData(inner, self._recorder)
        return self._data[1]

    def all_reduce(self, tensor: torch.Tensor, op: Any = "mean") -> torch.Tensor:
        with self._timed():
            return self.inner.all_reduce(tensor, op)

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        with self._timed():
            return self.inner.all_gather(tensor, sync_grads)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        with self._timed():
            return self.inner.broadcast(value, src)

    def gather_objects(self, value: Any) -> list[Any]:
        with self._timed():
            return self.inner.gather_objects(value)

    def barrier(self, name: str | None = None) -> None:
        with self._timed():
            self.inner.barrier(name)

    def close(self, failed: bool = False) -> None:
        self._recorder.begin_end(failed)
        try:
            self.inner.close(failed)  # waits for the other ranks, unless this rank failed
        finally:
            self._recorder.close(_end(failed))

    def _timed(self) -> AbstractContextManager[None]:
        return self._recorder.timed(COMMUNICATION)


def _end(failed: bool) -> str:
    """Return the record's `end` of a run that is being closed, inside the handler of an error that ends it."""
    if not failed:
        return "done"
    error = sys.exc_info()[1]
    # A run that was asked to stop has saved its checkpoint, and exits with this code.
    is_stop = isinstance(error, SystemExit) and error.code == os.EX_TEMPFAIL
    return "stopped" if is_stop else "failed"


class _OfData(RecordedCollectives):
    """The ranks that read different batches. Closing them doesn't end the record: closing the run's own does."""

    def close(self, failed: bool = False) -> None:
        self.inner.close(failed)


class RecordedCheckpointer(CheckpointerWrapper):
    """Times checkpoints, and records their paths.

    Args:
        inner: the wrapped checkpointer.
        recorder: of the run.
    """

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder

    def save(self, path: str, checkpoint: Checkpoint) -> None:
        with self._recorder.timed(CHECKPOINT):
            self.inner.save(path, checkpoint)
        self.inner.when_saved(lambda: self._recorder.event("saved", path=path))

    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        with self._recorder.timed(LOAD):
            return self.inner.open(path, verify)

    def wait(self) -> None:
        with self._recorder.timed(CHECKPOINT):
            self.inner.wait()

    def remove(self, path: str) -> None:
        with self._recorder.timed(CHECKPOINT):
            self.inner.remove(path)
