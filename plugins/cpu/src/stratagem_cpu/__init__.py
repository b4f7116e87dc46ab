"""Stratagem's accelerator `cpu`. Its class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_cpu.accelerator import CpuAccelerator

__all__ = ["CpuAccelerator"]


def __getattr__(name: str) -> Any:
    if name == "CpuAccelerator":
        from stratagem_cpu.accelerator import CpuAccelerator

        return CpuAccelerator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
