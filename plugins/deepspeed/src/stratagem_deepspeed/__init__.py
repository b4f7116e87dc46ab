"""Optimizer states, gradients and parameters shared out among ranks by the DeepSpeed engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_deepspeed.strategy import DeepSpeedStrategy

__all__ = ["DeepSpeedStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratagem_deepspeed import strategy

    return getattr(strategy, name)
