"""GPUs as the NVIDIA driver reports them, without initialising CUDA.

Initialising CUDA would forbid forking workers afterwards, so the launching process never does it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any


def load_driver() -> Any | None:
    """Return the driver's management library; None where there is no driver."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def compute_capabilities(driver: Any, environ: Mapping[str, str] = os.environ) -> list[tuple[int, int]]:
    """Return (major, minor) of each GPU that CUDA will see; empty where that isn't known.

    Args:
        driver: what `load_driver` returned.
        environ: where CUDA_VISIBLE_DEVICES is looked up.
    """
    if driver.nvmlInit_v2() != 0:
        return []
    try:
        capabilities = _all_capabilities(driver)
    finally:
        driver.nvmlShutdown()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return capabilities
    chosen = []
    for part in visible.split(","):
        # CUDA stops at the first index that doesn't exist. Unique names ("GPU-...") aren't resolved.
        if not part.strip().isdigit() or int(part) >= len(capabilities):
            break
        chosen.append(capabilities[int(part)])
    return chosen


def _all_capabilities(driver: Any) -> list[tuple[int, int]]:
    count = ctypes.c_uint()
    if driver.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    capabilities = []
    for index in range(count.value):
        handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if driver.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
            return []
        if driver.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != 0:
            return []
        capabilities.append((major.value, minor.value))
    return capabilities
