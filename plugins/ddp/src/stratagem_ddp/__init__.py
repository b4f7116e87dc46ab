"""DistributedDataParallel, a process per device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_ddp.prepared import DDPPrepared
    from stratagem_ddp.replica import ManualDDPPrepared, ReplicaPrepared
    from stratagem_ddp.strategy import DDPStrategy

_WHERE = {
    "DDPPrepared": "prepared",
    "DDPStrategy": "strategy",
    "ManualDDPPrepared": "replica",
    "ReplicaPrepared": "replica",
}

__all__ = ["DDPPrepared", "DDPStrategy", "ManualDDPPrepared", "ReplicaPrepared"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
