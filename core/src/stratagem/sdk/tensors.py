"""Tensors in batches and in gradients: moving, taking apart, joining."""

from stratagem.collectives.flat import gradients_of_any, in_few_pieces, send_from_first
from stratagem.data.batches import map_tensors, to_device
from stratagem.data.parts import PartLogs, merge, split
from stratagem.data.parts.current import refuse_in_part
from stratagem.data.size import batch_size_of

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
