"""Gradients in 16 bits. The class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from half_gradients.strategy import HalfGradients

__all__ = ["HalfGradients"]

__getattr__, __dir__ = lazy_names(__name__, {".strategy": "HalfGradients"})
