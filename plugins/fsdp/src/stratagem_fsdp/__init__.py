"""Parameters, gradients and optimizer states sharded over ranks, on torch's `fully_shard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_fsdp.gather_order import GatherOrder
    from stratagem_fsdp.kinds import by_kind
    from stratagem_fsdp.none_losses import expect_none_everywhere, reduce_kept_gradients
    from stratagem_fsdp.options import mixed_precision
    from stratagem_fsdp.prepared import FSDPPrepared
    from stratagem_fsdp.shard_mirror import ShardMirror
    from stratagem_fsdp.sharded_use import explaining
    from stratagem_fsdp.sharding import Sharded, inside, move_the_rest
    from stratagem_fsdp.strategy import FSDPStrategy
    from stratagem_fsdp.unit_gradients import UnitGradients

__all__ = [
    "FSDPPrepared",
    "FSDPStrategy",
    "GatherOrder",
    "ShardMirror",
    "Sharded",
    "UnitGradients",
    "by_kind",
    "expect_none_everywhere",
    "explaining",
    "inside",
    "mixed_precision",
    "move_the_rest",
    "reduce_kept_gradients",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".gather_order": "GatherOrder",
        ".kinds": "by_kind",
        ".none_losses": "expect_none_everywhere reduce_kept_gradients",
        ".options": "mixed_precision",
        ".prepared": "FSDPPrepared",
        ".shard_mirror": "ShardMirror",
        ".sharded_use": "explaining",
        ".sharding": "Sharded inside move_the_rest",
        ".strategy": "FSDPStrategy",
        ".unit_gradients": "UnitGradients",
    },
)
