"""Batches split over the devices of one process."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_dp.ddp2 import DDP2Strategy
    from stratagem_dp.strategy import DataParallelStrategy

_WHERE = {"DDP2Strategy": "ddp2", "DataParallelStrategy": "strategy"}

__all__ = ["DDP2Strategy", "DataParallelStrategy"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
