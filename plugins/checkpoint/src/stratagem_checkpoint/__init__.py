"""Safe, portable checkpoints: a directory of safetensors and JSON, of which nothing is executed.

The names are imported when they are first used, so that importing this package costs no import of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_checkpoint.description import describe
    from stratagem_checkpoint.directory import DirectoryCheckpointer
    from stratagem_checkpoint.loading import DirectoryReader

__all__ = ["DirectoryCheckpointer", "DirectoryReader", "describe"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".description": "describe",
        ".directory": "DirectoryCheckpointer",
        ".loading": "DirectoryReader",
    },
)
