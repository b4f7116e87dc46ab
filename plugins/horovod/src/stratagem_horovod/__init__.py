"""Horovod on its own engine, and processes that horovodrun has started. Classes are imported at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_horovod.environment import Horovod
    from stratagem_horovod.strategy import HorovodStrategy

__all__ = ["Horovod", "HorovodStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".environment": "Horovod", ".strategy": "HorovodStrategy"})
