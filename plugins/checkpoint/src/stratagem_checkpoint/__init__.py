"""Safe, portable checkpoints: a directory of safetensors and JSON, of which nothing is executed.

The names are imported when they are first used, so that importing this package costs no import of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_checkpoint.description import describe
    from stratagem_checkpoint.directory import DirectoryCheckpointer
    from stratagem_checkpoint.loading import DirectoryReader

__all__ = ["DirectoryCheckpointer", "DirectoryReader", "describe"]

_HOMES = {"DirectoryCheckpointer": "directory", "DirectoryReader": "loading", "describe": "description"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
