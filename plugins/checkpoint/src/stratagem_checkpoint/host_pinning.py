"""Pins existing host memory with a device's library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class HostPinning(NamedTuple):
    """How a device's library pins memory."""

    register: Callable[[int, int], bool]
    """Pins memory, given its address and size in bytes; returns whether it succeeded."""
    unregister: Callable[[int], object]
    """Unpins memory, given its address."""


def host_pinning(device: torch.device) -> HostPinning | None:
    """Return functions that pin memory for copies from a device; None if the device's library has none.

    The module of the device, as `torch.cuda`, has CUDA's runtime, or `register_host_memory` and
    `unregister_host_memory` with an address and a size in bytes.
    """
    module: Any = getattr(torch, device.type, None)
    if device.type == "cuda":
        cudart = module.cudart()
        return HostPinning(
            lambda address, size_bytes: int(cudart.cudaHostRegister(address, size_bytes, 0)) == 0,
            cudart.cudaHostUnregister,
        )
    register = getattr(module, "register_host_memory", None)
    return None if register is None else HostPinning(register, module.unregister_host_memory)
