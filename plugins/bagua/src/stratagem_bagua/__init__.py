"""Bagua's algorithms on torch.distributed: what is sent in 8 bits, and replicas that go their own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_bagua.qadam_optimizer import QAdamOptimizer
    from stratagem_bagua.strategy import BaguaStrategy

__all__ = ["BaguaStrategy", "QAdamOptimizer"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__, {".qadam_optimizer": "QAdamOptimizer", ".strategy": "BaguaStrategy"}
    )
