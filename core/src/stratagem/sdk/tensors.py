"""Tensors in batches and in gradients: moving, taking apart, joining."""

from stratagem.collectives.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any
from stratagem.collectives.equal_buffers import EqualBuffers
from stratagem.collectives.nests import Container, leaves_in, map_values, opened
from stratagem.data.batches import map_tensors, to_device
from stratagem.data.chunks import ChunkLogs, merge, split
from stratagem.data.chunks.current import refuse_in_chunk
from stratagem.data.size import batch_size_of

__all__ = [
    "ChunkLogs",
    "Container",
    "EqualBuffers",
    "batch_size_of",
    "broadcast_coalesced",
    "flattened_buckets",
    "gradients_of_any",
    "leaves_in",
    "map_tensors",
    "map_values",
    "merge",
    "opened",
    "refuse_in_chunk",
    "split",
    "to_device",
]
