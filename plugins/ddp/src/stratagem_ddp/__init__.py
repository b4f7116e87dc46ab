"""DistributedDataParallel, with one process per device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_ddp.prepared import DDPPrepared
    from stratagem_ddp.replica import ManualDDPPrepared, ReplicaPrepared
    from stratagem_ddp.strategy import DDPOptions, DDPStrategy

__all__ = ["DDPOptions", "DDPPrepared", "DDPStrategy", "ManualDDPPrepared", "ReplicaPrepared"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".prepared": "DDPPrepared",
            ".replica": "ManualDDPPrepared ReplicaPrepared",
            ".strategy": "DDPOptions DDPStrategy",
        },
    )
