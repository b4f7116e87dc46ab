"""Checkpoints in the memory of a rank's node and of a neighbouring one, which outlives the rank.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_memory_checkpoint.callback import MemoryCheckpoint
    from stratagem_memory_checkpoint.extension import PeerMemory

__all__ = ["MemoryCheckpoint", "PeerMemory"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".callback": "MemoryCheckpoint", ".extension": "PeerMemory"})
