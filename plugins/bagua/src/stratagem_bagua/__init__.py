"""Bagua's algorithms on torch.distributed: gradients in 8 bits, and replicas that only talk to some others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_bagua.strategy import BaguaStrategy

__all__ = ["BaguaStrategy"]

__getattr__, __dir__ = lazy_names(__name__, {".strategy": "BaguaStrategy"})
