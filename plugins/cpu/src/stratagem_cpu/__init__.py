"""Stratagem's accelerator `cpu`. Its class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_cpu.accelerator import CpuAccelerator

__all__ = ["CpuAccelerator"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".accelerator": "CpuAccelerator"})
