"""One device, one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_single.strategy import SingleDeviceStrategy

__all__ = ["SingleDeviceStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".strategy": "SingleDeviceStrategy"})
