"""Intel Gaudi processors (HPUs), through habana_frameworks. Classes are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_hpu.accelerator import HPUAccelerator
    from stratagem_hpu.parallel import HPUParallelStrategy
    from stratagem_hpu.single import SingleHPUStrategy

__all__ = ["HPUAccelerator", "HPUParallelStrategy", "SingleHPUStrategy"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".accelerator": "HPUAccelerator",
            ".parallel": "HPUParallelStrategy",
            ".single": "SingleHPUStrategy",
        },
    )
