"""Tensor, sequence and context parallelism: layers or sequences distributed among ranks over a device mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_model_parallel.axis import TensorAxis
    from stratagem_model_parallel.blocks import BlockPlan
    from stratagem_model_parallel.context.axis import ContextAxis
    from stratagem_model_parallel.context.live import sum_over_sequence
    from stratagem_model_parallel.context.plan import ContextPlan
    from stratagem_model_parallel.context.strategy import ContextParallelStrategy
    from stratagem_model_parallel.strategy import ModelParallelStrategy

__all__ = [
    "BlockPlan",
    "ContextAxis",
    "ContextParallelStrategy",
    "ContextPlan",
    "ModelParallelStrategy",
    "TensorAxis",
    "sum_over_sequence",
]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".axis": "TensorAxis",
            ".blocks": "BlockPlan",
            ".context.axis": "ContextAxis",
            ".context.live": "sum_over_sequence",
            ".context.plan": "ContextPlan",
            ".context.strategy": "ContextParallelStrategy",
            ".strategy": "ModelParallelStrategy",
        },
    )
