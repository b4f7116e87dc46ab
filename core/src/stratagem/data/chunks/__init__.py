"""A batch in parts, for strategies that run several per step: splitting, merging, and what parts log."""

from __future__ import annotations

from stratagem.data.chunks.current import part_of_batch, refuse_in_chunk
from stratagem.data.chunks.logs import ChunkLogs, Logged
from stratagem.data.chunks.splitting import merge, split

__all__ = ["ChunkLogs", "Logged", "merge", "part_of_batch", "refuse_in_chunk", "split"]
