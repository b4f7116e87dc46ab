"""In which ways a strategy cuts what optimizers step."""

from __future__ import annotations

from typing import Literal

Cut = Literal["rows", "columns", "flat", "parameters"]
"""What each rank's optimizer has: rows or columns of every parameter; a piece of each group's parameters, flattened
and concatenated; or some of the parameters, each of them whole."""
CUTS: tuple[Cut, ...] = ("rows", "columns", "flat", "parameters")
"""All of them."""
