"""Tensors in batches: moving, taking apart; whether a step has a whole batch."""

from stratagem.collectives.nests import Container, leaves_in, map_values, opened
from stratagem.data.batches import map_tensors, to_device
from stratagem.data.part_of_batch import part_of_batch, refuse_in_chunk
from stratagem.data.size import batch_size_of
from stratagem.names.deprecation import replaced_names
from stratagem.names.offered import MOVED

__all__ = [
    "Container",
    "batch_size_of",
    "leaves_in",
    "map_tensors",
    "map_values",
    "opened",
    "part_of_batch",
    "refuse_in_chunk",
    "to_device",
]

__getattr__ = replaced_names(__name__, MOVED[__name__])
