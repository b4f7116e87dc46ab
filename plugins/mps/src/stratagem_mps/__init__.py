"""Stratagem's accelerator `mps`. Its class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_mps.accelerator import MpsAccelerator

__all__ = ["MpsAccelerator"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".accelerator": "MpsAccelerator"})
