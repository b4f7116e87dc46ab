"""`CheckpointerWrapper`: the base class for results of wrappers of the `checkpoint` hook."""

from __future__ import annotations

from stratagem.checkpoint.base import Checkpoint, Checkpointer, CheckpointReader
from stratagem.plugin.forwarding import forwards


@forwards
class CheckpointerWrapper(Checkpointer):
    """Forwards every call to `inner`; a subclass overrides what it changes.

    Args:
        inner: the result of the wrapped implementation.
    """

    def __init__(self, inner: Checkpointer) -> None:
        self.inner = inner

    def save(self, path: str, checkpoint: Checkpoint) -> None:
        self.inner.save(path, checkpoint)

    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        return self.inner.open(path, verify)

    def remove(self, path: str) -> None:
        self.inner.remove(path)
