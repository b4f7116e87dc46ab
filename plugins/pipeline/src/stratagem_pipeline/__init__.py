"""Layers in stages on several devices, on torch.distributed.pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_pipeline.axis import PipelineAxis
    from stratagem_pipeline.strategy import PipelineStrategy

__all__ = ["PipelineAxis", "PipelineStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".axis": "PipelineAxis", ".strategy": "PipelineStrategy"})
