"""`Replica`: a value of which ranks hold copies, and which they compare."""

from __future__ import annotations

from typing import Any, NamedTuple


class Replica(NamedTuple):
    """A value that must be equal on all ranks with the same `shard` of the same `layout`."""

    name: str
    """For messages, such as "parameter 'net.weight'"."""
    value: Any
    """A tensor, or a JSON value."""
    layout: str = ""
    """How ranks divide it, such as "stages"; empty if every rank has all of it."""
    shard: str = ""
    """This rank's shard in that layout, such as "2"."""
