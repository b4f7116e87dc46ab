"""`optimizer_name`: the name of an optimizer in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the name of the user's class, even if a strategy steps another optimizer instead.

    That optimizer has the user's optimizer as its attribute `whole`.
    """
    return type(getattr(optimizer, "whole", optimizer)).__name__
