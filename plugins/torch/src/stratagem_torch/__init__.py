"""Stratagem's accelerator `torch`. Its class is imported, and torch with it, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_torch.accelerator import TorchAccelerator

__all__ = ["TorchAccelerator"]


def __getattr__(name: str) -> Any:
    if name == "TorchAccelerator":
        from stratagem_torch.accelerator import TorchAccelerator

        return TorchAccelerator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
