"""Graphcore IPUs, through poptorch. Classes are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_ipu.accelerator import IPUAccelerator
    from stratagem_ipu.strategy import IPUStrategy

__all__ = ["IPUAccelerator", "IPUStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__, {".accelerator": "IPUAccelerator", ".strategy": "IPUStrategy"}
    )
