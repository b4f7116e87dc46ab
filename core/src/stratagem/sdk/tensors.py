"""Tensors in batches and in gradients: moving, taking apart, joining."""

from stratagem.batches import map_tensors, to_device
from stratagem.collectives.flat import gradients_of_any, in_few_pieces, send_from_first
from stratagem.data.size import batch_size_of
from stratagem.parts import PartLogs, merge, split
from stratagem.parts.current import refuse_in_part

__all__ = [
    "PartLogs",
    "batch_size_of",
    "gradients_of_any",
    "in_few_pieces",
    "map_tensors",
    "merge",
    "refuse_in_part",
    "send_from_first",
    "split",
    "to_device",
]
