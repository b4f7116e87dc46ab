"""`MissingCheckpointer`: the checkpointer if no checkpoint plugin is installed."""

from __future__ import annotations

from stratagem.checkpoint.base import Checkpoint, Checkpointer, CheckpointReader
from stratagem.errors import UnknownNameError


class MissingCheckpointer(Checkpointer):
    """Refuses every call. A run that saves and loads nothing needs no checkpointer plugin.

    Args:
        why: what is missing, and what to install.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def save(self, path: str, checkpoint: Checkpoint) -> None:
        raise UnknownNameError(f"{path} can't be saved: {self._why}")

    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        raise UnknownNameError(f"{path} can't be loaded: {self._why}")

    def remove(self, path: str) -> None:
        raise UnknownNameError(f"{path} can't be removed: {self._why}")
