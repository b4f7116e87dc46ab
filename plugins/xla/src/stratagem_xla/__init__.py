"""TPUs and other XLA devices, through torch_xla. Classes are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_xla.accelerator import TpuAccelerator, XlaAccelerator
    from stratagem_xla.fsdp import XLAFSDPStrategy
    from stratagem_xla.single import SingleDeviceXLAStrategy
    from stratagem_xla.strategy import XLAStrategy

__all__ = ["SingleDeviceXLAStrategy", "TpuAccelerator", "XLAFSDPStrategy", "XLAStrategy", "XlaAccelerator"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".accelerator": "TpuAccelerator XlaAccelerator",
            ".fsdp": "XLAFSDPStrategy",
            ".single": "SingleDeviceXLAStrategy",
            ".strategy": "XLAStrategy",
        },
    )
