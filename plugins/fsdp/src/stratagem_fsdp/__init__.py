"""Parameters, gradients and optimizer states sharded over ranks, on torch's `fully_shard`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_fsdp.strategy import FSDPStrategy

__all__ = ["FSDPStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratagem_fsdp import strategy

    return getattr(strategy, name)
