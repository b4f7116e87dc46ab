"""Tensors in batches and in gradients: moving, taking apart, joining."""

from stratagem.collectives.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any
from stratagem.data.batches import map_tensors, to_device
from stratagem.data.chunks import ChunkLogs, merge, split
from stratagem.data.chunks.current import refuse_in_chunk
from stratagem.data.size import batch_size_of

__all__ = [
    "ChunkLogs",
    "batch_size_of",
    "broadcast_coalesced",
    "flattened_buckets",
    "gradients_of_any",
    "map_tensors",
    "merge",
    "refuse_in_chunk",
    "split",
    "to_device",
]
