"""`optimizer_name`: what messages call an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the name of the class that the user's code has, also where a strategy steps another in its place.

    Such an optimizer has the user's as its attribute `whole`.
    """
    return type(getattr(optimizer, "whole", optimizer)).__name__
