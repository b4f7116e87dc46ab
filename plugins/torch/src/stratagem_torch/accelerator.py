"""Whatever accelerator PyTorch itself reports: its own backends and those it loads by entry point."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

from stratagem import Accelerator, Availability
from stratagem_torch.torch_private import backend_out_of_tree

_OWN_PLUGINS = {
    "cuda": "stratagem-cuda",
    "hpu": "stratagem-hpu",
    "mps": "stratagem-mps",
    "sim": "stratagem-sim",
}
"""Device types that have their own distribution."""


class TorchAccelerator(Accelerator):
    """The one kind of accelerator that `torch.accelerator` reports here: xpu, npu, privateuse1, ...

    Out-of-tree backends need only be installed: PyTorch loads the entry points `torch.backends`.

    Attributes:
        device_type: as "xpu"; None where PyTorch reports none.
        autocast_type: the same, or "cpu".
        backend: the process group backend registered for it, else gloo.
    """

    name = "torch"

    def __init__(self) -> None:
        found = torch.accelerator.current_accelerator()
        self.device_type = None if found is None else found.type
        self.autocast_type = self.device_type or "cpu"
        self.backend = _backend(self.device_type)

    def availability(self) -> Availability:
        if self.device_type is None:
            return Availability(False, "PyTorch reports no accelerator")
        if self.device_type in _OWN_PLUGINS:
            distribution = _OWN_PLUGINS[self.device_type]
            return Availability(False, f"{self.device_type} has its own accelerator, from {distribution}")
        count = self.device_count()
        if count == 0:
            return Availability(False, f"PyTorch knows {self.device_type}, but finds no device")
        return Availability(True, f"{count} {self.device_type} device{'s' if count != 1 else ''}")

    def device_count(self) -> int:
        return torch.accelerator.device_count() if self.device_type else 0

    def device(self, index: int) -> torch.device:
        return torch.device(self.device_type or "cpu", index)

    def set_up(self, device: torch.device) -> None:
        torch.accelerator.set_device_index(device.index or 0)

    def refuse_precision(self, precision: str) -> str | None:
        if not precision.endswith("-mixed"):
            return None
        if not torch.amp.autocast_mode.is_autocast_available(self.autocast_type):
            return f"{self.device_type} has no autocast; use 32-true"
        wanted = torch.bfloat16 if precision.startswith("bf16") else torch.float16
        module = torch.get_device_module(self.autocast_type)
        if self.autocast_type == backend_out_of_tree():
            # What torch.autocast asks of such a backend.
            dtypes = module.get_amp_supported_dtype() if hasattr(module, "get_amp_supported_dtype") else []
            if wanted not in dtypes:
                return f"the autocast of {self.device_type} has no {str(wanted).removeprefix('torch.')}"
        return None

    def synchronize(self, device: torch.device) -> None:
        torch.accelerator.synchronize(device)

    def memory(self, device: torch.device) -> dict[str, int]:
        module: Any = torch.get_device_module(self.autocast_type)
        names = {"allocated_bytes": "memory_allocated", "reserved_bytes": "memory_reserved"}
        return {name: getattr(module, call)(device) for name, call in names.items() if hasattr(module, call)}


def _backend(device_type: str | None) -> str:
    if device_type is None or not torch.distributed.is_available():
        return "gloo"
    try:
        return torch.distributed.get_default_backend_for_device(device_type)
    except ValueError:
        # No backend has been registered for it.
        return "gloo"
