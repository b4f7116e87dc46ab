"""What objects of Lightning's have and ours don't, and values that are there in another form."""

from __future__ import annotations

from typing import Any

import torch

from stratagem.errors import ConfigError
from stratagem.sdk.tensors import map_values
from stratagem_lightning.absent import MEMBERS, UNREACHABLE


def no_member(owner: str, name: str) -> str:
    """Return a sentence about an attribute that an object of class `owner` doesn't have."""
    reasons = {**MEMBERS[owner], **(UNREACHABLE if owner == "Trainer" else {})}
    return f"{owner} has no attribute {name!r}" + (f": {reasons[name]}" if name in reasons else "")


def in_tensors(data: Any, device: torch.device) -> Any:
    """Return nested `data` with numbers in tensors, as what is gathered from several ranks has them."""
    return map_values(lambda tensor: tensor, data, device)


def number(name: str, value: Any) -> float:
    """Return a number, or a tensor's one element, as a number."""
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{name!r} is logged with a {type(value).__name__}, not a number or a tensor of one element"
        ) from error
