"""Layers in stages on several devices, on torch.distributed.pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_pipeline.strategy import PipelineStrategy

__all__ = ["PipelineStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratagem_pipeline import strategy

    return getattr(strategy, name)
