"""Tensors in batches: moving, taking apart."""

from stratagem.collectives.nests import Container, leaves_in, map_values, opened
from stratagem.data.batches import map_tensors, to_device
from stratagem.names.deprecation import replaced_names

__all__ = ["Container", "leaves_in", "map_tensors", "map_values", "opened", "to_device"]

__getattr__ = replaced_names(__name__)
