"""Tensors in batches: moving, taking apart."""

from stratagem.collectives.nests import Container, leaves_in, map_values, opened
from stratagem.data.batches import map_tensors, to_device

__all__ = ["Container", "leaves_in", "map_tensors", "map_values", "opened", "to_device"]
