"""Stratagem's accelerator `mps`. Its class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_mps.accelerator import MpsAccelerator

__all__ = ["MpsAccelerator"]


def __getattr__(name: str) -> Any:
    if name == "MpsAccelerator":
        from stratagem_mps.accelerator import MpsAccelerator

        return MpsAccelerator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
