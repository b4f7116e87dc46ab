"""Gradients in 16 bits. The class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from half_gradients.strategy import HalfGradients

__all__ = ["HalfGradients"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from half_gradients import strategy

    return getattr(strategy, name)
