"""Convert the result of a training step for hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stratagem import LossSum


def seen_by_hooks(returned: Any) -> Any:
    """Return a dict with "loss" and the step's other outputs, detached; None if the step returned None.

    For a `LossSum` the dict has the sum as "loss", and "weight".
    """
    if isinstance(returned, torch.Tensor):
        return {"loss": returned.detach()}
    if isinstance(returned, LossSum):
        returned = returned._asdict()
    if isinstance(returned, Mapping):
        return {
            name: value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in returned.items()
        }
    return returned
