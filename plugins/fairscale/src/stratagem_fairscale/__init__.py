"""FairScale's OSS with ShardedDDP, and its Pipe. Classes are imported at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_fairscale.pipe import FairScalePipeStrategy
    from stratagem_fairscale.strategy import FairScaleShardedStrategy

__all__ = ["FairScalePipeStrategy", "FairScaleShardedStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__, {".pipe": "FairScalePipeStrategy", ".strategy": "FairScaleShardedStrategy"}
    )
