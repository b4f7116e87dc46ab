"""Data parallel whose ranks share out optimizer states, or those and gradients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_sharded.fully import DDPFullyShardedStrategy
    from stratagem_sharded.strategy import DDPShardedStrategy

_WHERE = {"DDPFullyShardedStrategy": "fully", "DDPShardedStrategy": "strategy"}

__all__ = ["DDPFullyShardedStrategy", "DDPShardedStrategy"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
