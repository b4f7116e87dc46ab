"""`Recording`: the extension that records a run of Stratagem, under any strategy."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from stratagem import PreparedWrapper, hookimpl
from stratagem_diff.recorder import Recorder, RecordOptions

if TYPE_CHECKING:
    from stratagem_trainer.callbacks import Callback
    from torch import nn

    from stratagem import Prepared, SetupRequest

VARIABLE = "STRATAGEM_DIFF_RECORD"
"""Environment variable with a `RecordingOrder` as JSON. `--use` passes no arguments to a class."""


@dataclass(frozen=True)
class RecordingOrder:
    """What a run is asked to record, and what is changed in it."""

    folder: str
    """Of the record."""
    options: RecordOptions = field(default_factory=RecordOptions)
    """What is recorded."""
    compile: bool = False
    """Whether the user's module is compiled, by `nn.Module.compile`, before the strategy wraps it."""
    step: int | None = None
    """The optimizer step of a Trainer with which the record begins, from 1; None for the run's first one."""

    def to_json(self) -> str:
        """Return the order as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RecordingOrder:
        """Return the order that `to_json` wrote."""
        found = json.loads(text)
        return cls(found["folder"], RecordOptions(**found["options"]), found["compile"], found.get("step"))


class Recording:
    """Records the module that a run trains. Made in every worker, with the order from the environment."""

    def __init__(self) -> None:
        self._order = RecordingOrder.from_json(os.environ[VARIABLE])
        self._recorder: Recorder | None = None

    def configure_callbacks(self) -> Sequence[Callback]:
        """Return what begins the record at the ordered step, for a Trainer, which calls this."""
        if self._order.step is None:
            return []
        from stratagem_diff.step_callback import StepCallback

        return [StepCallback(self._order.step, self._watch)]

    def _watch(self, module: nn.Module) -> None:
        assert self._recorder is not None
        self._recorder.watch(module)

    @hookimpl(wrapper=True)
    def setup(self, request: SetupRequest) -> Generator[None, Prepared, Prepared]:
        """Set the recorder's hooks after the strategy has wrapped the module."""
        if not request.loop.training:
            return (yield)
        if self._order.compile:
            request.original_module.compile()
        prepared = yield
        collectives = request.collectives
        recorder = self._recorder = Recorder(
            self._order.folder,
            self._order.options,
            rank=collectives.rank,
            world_size=collectives.world_size,
            first_step=self._order.step,
        )
        if self._order.step is None:
            recorder.watch(request.original_module)
        return _Recorded(prepared, recorder)


class _Recorded(PreparedWrapper):
    """Closes the record at the run's end."""

    def __init__(self, inner: Prepared, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder

    def release(self) -> None:
        """Close the record, then release `inner`."""
        self._recorder.close()
        self.inner.release()
