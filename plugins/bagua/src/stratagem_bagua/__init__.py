"""Bagua's algorithms on torch.distributed: gradients in 8 bits, and replicas that only talk to some others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_bagua.strategy import BaguaStrategy

_WHERE = {"BaguaStrategy": "strategy"}

__all__ = ["BaguaStrategy"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
