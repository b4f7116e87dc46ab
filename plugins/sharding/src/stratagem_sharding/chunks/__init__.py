"""For strategies that run a batch in several chunks: split the batch, and merge the chunks' outputs and logs."""

from __future__ import annotations

from stratagem_sharding.chunks.logs import ChunkLogs, Logged
from stratagem_sharding.chunks.splitting import merge, split

__all__ = ["ChunkLogs", "Logged", "merge", "split"]
