"""DiLoCo: replicas train independently and take an outer step together every n steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_diloco.strategy import DiLoCoStrategy

__all__ = ["DiLoCoStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".strategy": "DiLoCoStrategy"})
