"""How a strategy shards what optimizers step."""

from __future__ import annotations

from typing import Literal

Cut = Literal["rows", "columns", "flat", "parameters"]
"""What each rank's optimizer holds: rows or columns of every parameter; a shard of each group's parameters, flattened
and concatenated; or some of the parameters, each unsharded."""
CUTS: tuple[Cut, ...] = ("rows", "columns", "flat", "parameters")
"""All values of `Cut`."""
