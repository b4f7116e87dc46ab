"""Data parallel whose ranks distribute optimizer states, or those and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_sharded.fully import DDPFullyShardedStrategy
    from stratagem_sharded.strategy import DDPShardedStrategy

__all__ = ["DDPFullyShardedStrategy", "DDPShardedStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".fully": "DDPFullyShardedStrategy",
            ".strategy": "DDPShardedStrategy",
        },
    )
