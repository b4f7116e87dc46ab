"""Pins host memory that exists already, by the library of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class HostPinning(NamedTuple):
    """How a device's library pins memory."""

    register: Callable[[int, int], bool]
    """Pins memory by its address and size in bytes; returns whether that was possible."""
    unregister: Callable[[int], object]
    """Undoes it, by the address."""


def host_pinning(device: torch.device) -> HostPinning | None:
    """Return how memory is pinned for copies from a device; None where its library has no function for it.

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
