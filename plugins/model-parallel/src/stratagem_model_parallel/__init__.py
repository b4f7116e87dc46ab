"""Tensor and sequence parallelism over a device mesh, on its own or with shards (FSDP2) beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_model_parallel.blocks import BlockPlan
    from stratagem_model_parallel.strategy import ModelParallelStrategy

__all__ = ["BlockPlan", "ModelParallelStrategy"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".blocks": "BlockPlan",
        ".strategy": "ModelParallelStrategy",
    },
)
