"""Optimizer states, gradients and parameters distributed among ranks by the DeepSpeed engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_deepspeed.strategy import DeepSpeedStrategy

__all__ = ["DeepSpeedStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".strategy": "DeepSpeedStrategy"})
