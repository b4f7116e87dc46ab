"""Stratagem's accelerator `cuda`. Its class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_cuda.accelerator import CudaAccelerator

__all__ = ["CudaAccelerator"]


def __getattr__(name: str) -> Any:
    if name == "CudaAccelerator":
        from stratagem_cuda.accelerator import CudaAccelerator

        return CudaAccelerator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
