"""For tensors in batches: moving them, finding them in containers, and whether a device has events."""

from stratagem.collectives.nests import Container, leaves_in, map_values, opened
from stratagem.data.batches import has_events, map_tensors, to_device

__all__ = ["Container", "has_events", "leaves_in", "map_tensors", "map_values", "opened", "to_device"]
