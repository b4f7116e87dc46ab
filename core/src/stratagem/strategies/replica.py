"""`Replica`: what ranks that hold copies compare."""

from __future__ import annotations

from typing import Any, NamedTuple


class Replica(NamedTuple):
    """Something that is equal on every rank which has the same `shard` of a `layout`."""

    name: str
    """For messages, as "parameter 'net.weight'"."""
    value: Any
    """A tensor, or what JSON can hold."""
    layout: str = ""
    """How it is shared out, as "stages"; empty where every rank has all of it."""
    shard: str = ""
    """What this rank has in that layout, as "2"."""
