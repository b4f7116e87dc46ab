"""TPUs and other XLA devices, through torch_xla. Classes are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_xla.accelerator import TpuAccelerator, XlaAccelerator
    from stratagem_xla.fsdp import XLAFSDPStrategy
    from stratagem_xla.single import SingleDeviceXLAStrategy
    from stratagem_xla.strategy import XLAStrategy

_WHERE = {
    "SingleDeviceXLAStrategy": "single",
    "TpuAccelerator": "accelerator",
    "XLAFSDPStrategy": "fsdp",
    "XLAStrategy": "strategy",
    "XlaAccelerator": "accelerator",
}

__all__ = ["SingleDeviceXLAStrategy", "TpuAccelerator", "XLAFSDPStrategy", "XLAStrategy", "XlaAccelerator"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
