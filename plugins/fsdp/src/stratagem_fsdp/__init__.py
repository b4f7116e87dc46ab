"""Parameters, gradients and optimizer states sharded over ranks, on torch's `fully_shard`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_fsdp.kinds import by_kind
    from stratagem_fsdp.options import mixed_precision
    from stratagem_fsdp.prepared import FSDPPrepared
    from stratagem_fsdp.sharding import Sharded, inside, move_the_rest
    from stratagem_fsdp.strategy import FSDPStrategy

__all__ = [
    "FSDPPrepared",
    "FSDPStrategy",
    "Sharded",
    "by_kind",
    "inside",
    "mixed_precision",
    "move_the_rest",
]

_HOMES = {
    "FSDPPrepared": "prepared",
    "FSDPStrategy": "strategy",
    "Sharded": "sharding",
    "by_kind": "kinds",
    "inside": "sharding",
    "mixed_precision": "options",
    "move_the_rest": "sharding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
