"""One device, one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_single.strategy import SingleDeviceStrategy

__all__ = ["SingleDeviceStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratagem_single import strategy

    return getattr(strategy, name)
