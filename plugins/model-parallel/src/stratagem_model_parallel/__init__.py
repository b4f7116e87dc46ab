"""Tensor and sequence parallelism over a device mesh, on its own or with shards (FSDP2) beside it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_model_parallel.blocks import BlockPlan
    from stratagem_model_parallel.strategy import ModelParallelStrategy

__all__ = ["BlockPlan", "ModelParallelStrategy"]

_HOMES = {"BlockPlan": "blocks", "ModelParallelStrategy": "strategy"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
