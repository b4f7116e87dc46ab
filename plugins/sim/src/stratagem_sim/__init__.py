"""Stratagem's accelerator `sim`, a device for tests. Its names are imported, and torch with them, when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_sim.accelerator import SimAccelerator
    from stratagem_sim.device import (
        SimSettings,
        Synchronizations,
        Work,
        count_synchronizations,
        load,
        record_timeline,
        synchronizations,
    )

__all__ = [
    "SimAccelerator",
    "SimSettings",
    "Synchronizations",
    "Work",
    "count_synchronizations",
    "load",
    "record_timeline",
    "synchronizations",
]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".accelerator": "SimAccelerator",
            ".device": (
                "SimSettings Synchronizations Work count_synchronizations load record_timeline synchronizations"
            ),
        },
    )
