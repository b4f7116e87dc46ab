"""Parameters, gradients and optimizer states sharded over ranks, on torch's `fully_shard`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

__all__ = [
    "FSDPPrepared",
    "FSDPStrategy",
    "GatherOrder",
    "ShardMirror",
    "Sharded",
    "by_kind",
    "expect_none_everywhere",
    "explaining",
    "inside",
    "mixed_precision",
    "move_the_rest",
    "reduce_kept_gradients",
]

_HOMES = {
    "FSDPPrepared": "prepared",
    "FSDPStrategy": "strategy",
    "GatherOrder": "gather_order",
    "ShardMirror": "shard_mirror",
    "Sharded": "sharding",
    "by_kind": "kinds",
    "expect_none_everywhere": "none_losses",
    "explaining": "sharded_use",
    "inside": "sharding",
    "mixed_precision": "options",
    "move_the_rest": "sharding",
    "reduce_kept_gradients": "none_losses",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
