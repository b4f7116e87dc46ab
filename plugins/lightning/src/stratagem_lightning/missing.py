"""Members of Lightning's objects that are missing here, and conversions of values."""

from __future__ import annotations

from typing import Any

import torch

from stratagem.errors import ConfigError
from stratagem.sdk.tensors import map_values
from stratagem_lightning.absent import LOOPS, MEMBERS, UNREACHABLE


def no_member(owner: str, name: str) -> str:
    """Return a sentence about a missing attribute of an object of class `owner`."""
    reasons = {**MEMBERS[owner], **(UNREACHABLE if owner == "Trainer" else {})}
    return f"{owner} has no attribute {name!r}" + (f": {reasons[name]}" if name in reasons else "")


class LoopView:
    """The part of a trainer's loop that can be read and set: its limits. All other attributes are refused.

    Args:
        trainer: has the settings.
        name: of the loop, for messages.
        limits: names of the settings.
    """

    _trainer: Any

    def __init__(self, trainer: Any, name: str, limits: tuple[str, ...]) -> None:
        vars(self).update(_trainer=trainer, _name=name, _limits=limits)

    def __getattr__(self, name: str) -> Any:
        loop, limits = vars(self)["_name"], vars(self)["_limits"]
        if name not in limits:
            raise AttributeError(f"trainer.{loop} has {', '.join(limits)} alone, and no {name!r}: {LOOPS}")
        return getattr(self._trainer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self, name)
        self._trainer.change(name, value)


def in_tensors(data: Any, device: torch.device) -> Any:
    """Return nested `data` with numbers as tensors, so that a single rank returns the same types as several ranks."""
    return map_values(lambda tensor: tensor, data, device)


def number(name: str, value: Any) -> float:
    """Return a number, or the only element of a tensor, as a number."""
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{name!r} is logged with a {type(value).__name__}, not a number or a tensor of one element"
        ) from error
