"""Parameters, gradients and optimizer states sharded over ranks, on torch's `fully_shard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_fsdp.axes import ReplicateAxis, ShardAxis
    from stratagem_fsdp.options import mixed_precision
    from stratagem_fsdp.prepared import FSDPPrepared
    from stratagem_fsdp.sharding import Sharded, move_the_rest
    from stratagem_fsdp.strategy import FSDPStrategy
    from stratagem_fsdp.unit_prepared import UnitPrepared
    from stratagem_fsdp.units import shard_units, sharded_units

__all__ = [
    "FSDPPrepared",
    "FSDPStrategy",
    "ReplicateAxis",
    "ShardAxis",
    "Sharded",
    "UnitPrepared",
    "mixed_precision",
    "move_the_rest",
    "shard_units",
    "sharded_units",
]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".axes": "ReplicateAxis ShardAxis",
            ".options": "mixed_precision",
            ".prepared": "FSDPPrepared",
            ".sharding": "Sharded move_the_rest",
            ".strategy": "FSDPStrategy",
            ".unit_prepared": "UnitPrepared",
            ".units": "shard_units sharded_units",
        },
    )
