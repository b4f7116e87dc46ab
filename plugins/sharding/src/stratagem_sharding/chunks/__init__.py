"""A batch in parts, for strategies that run several per step: splitting, merging, and what parts log."""

from __future__ import annotations

from stratagem_sharding.chunks.logs import ChunkLogs, Logged
from stratagem_sharding.chunks.splitting import merge, split

__all__ = ["ChunkLogs", "Logged", "merge", "split"]
