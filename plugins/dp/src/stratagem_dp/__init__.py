"""Batches split over the devices of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_dp.ddp2 import DDP2Strategy
    from stratagem_dp.strategy import DataParallelStrategy

__all__ = ["DDP2Strategy", "DataParallelStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".ddp2": "DDP2Strategy",
            ".strategy": "DataParallelStrategy",
        },
    )
