"""Safe, portable checkpoints.

The names are imported when they are first used, so that importing `stratagem.checkpoint.base` costs no
import of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem.checkpoint.base import Checkpoint, Checkpointer, CheckpointReader, TensorInfo
    from stratagem.checkpoint.description import describe
    from stratagem.checkpoint.directory import DirectoryCheckpointer
    from stratagem.checkpoint.loading import DirectoryReader

__all__ = [
    "Checkpoint",
    "CheckpointReader",
    "Checkpointer",
    "DirectoryCheckpointer",
    "DirectoryReader",
    "TensorInfo",
    "describe",
]

_MODULES = {
    "Checkpoint": "base",
    "CheckpointReader": "base",
    "Checkpointer": "base",
    "DirectoryCheckpointer": "directory",
    "DirectoryReader": "loading",
    "TensorInfo": "base",
    "describe": "description",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
