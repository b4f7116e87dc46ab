"""Parameters, gradients and optimizer states sharded over ranks, on torch's `fully_shard`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_fsdp.deferred import Construction
    from stratagem_fsdp.materialize import Materializer, own_modules
    from stratagem_fsdp.options import mixed_precision
    from stratagem_fsdp.prepared import FSDPPrepared
    from stratagem_fsdp.recompute import recompute_activations
    from stratagem_fsdp.sharding import Sharded, inside, move_the_rest
    from stratagem_fsdp.strategy import FSDPStrategy
    from stratagem_fsdp.units import called_parts, modules_named, units_among

__all__ = [
    "Construction",
    "FSDPPrepared",
    "FSDPStrategy",
    "Materializer",
    "Sharded",
    "called_parts",
    "inside",
    "mixed_precision",
    "modules_named",
    "move_the_rest",
    "own_modules",
    "recompute_activations",
    "units_among",
]

_HOMES = {
    "Construction": "deferred",
    "FSDPPrepared": "prepared",
    "FSDPStrategy": "strategy",
    "Materializer": "materialize",
    "Sharded": "sharding",
    "called_parts": "units",
    "inside": "sharding",
    "mixed_precision": "options",
    "modules_named": "units",
    "move_the_rest": "sharding",
    "own_modules": "materialize",
    "recompute_activations": "recompute",
    "units_among": "units",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
