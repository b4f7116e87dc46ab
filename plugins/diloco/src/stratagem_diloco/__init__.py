"""DiLoCo: replicas train by themselves and take an outer step together every so many steps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_diloco.strategy import DiLoCoStrategy

_WHERE = {"DiLoCoStrategy": "strategy"}

__all__ = ["DiLoCoStrategy"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
