"""What a training step returned, as hooks get it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stratagem import LossSum


def seen_by_hooks(returned: Any) -> Any:
    """Return a dict with "loss" and what else the step returned, without its graph; None where that was returned.

    Of a `LossSum`, that is the sum and its "weight".
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
