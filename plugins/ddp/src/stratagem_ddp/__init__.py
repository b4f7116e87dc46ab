"""DistributedDataParallel, a process per device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_ddp.strategy import DDPStrategy

__all__ = ["DDPStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratagem_ddp import strategy

    return getattr(strategy, name)
