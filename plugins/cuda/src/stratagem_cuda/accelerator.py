"""GPUs that PyTorch reaches as `cuda`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

from stratagem import Accelerator, Availability
from stratagem_cuda.nvml import compute_capabilities, load_driver


class CudaAccelerator(Accelerator):
    """NVIDIA GPUs, and AMD GPUs where PyTorch was built for ROCm.

    Everything that the launching process asks comes from the driver, so that it can fork workers.
    """

    name = "cuda"
    autocast_type = "cuda"
    backend = "nccl"

    def availability(self) -> Availability:
        if not _has_driver():
            return Availability(False, "no driver")
        if torch.version.cuda is None and torch.version.hip is None:
            return Availability(
                False, f"PyTorch {torch.__version__} is built without CUDA: install a build with it"
            )
        count = self.device_count()
        if count == 0:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            hidden = f"CUDA_VISIBLE_DEVICES={visible!r} hides them" if visible is not None else "none found"
            return Availability(False, f"a driver, but no device: {hidden}")
        return Availability(True, f"{count} device{'s' if count != 1 else ''}")

    def device_count(self) -> int:
        return torch.cuda.device_count()

    def device(self, index: int) -> torch.device:
        return torch.device("cuda", index)

    def set_up(self, device: torch.device) -> None:
        torch.cuda.set_device(device)

    def refuse_precision(self, precision: str) -> str | None:
        needed = _needed_capability(precision)
        if needed is None:
            return None
        driver = load_driver()
        capabilities = compute_capabilities(driver) if driver is not None else []
        # With GPUs of several kinds, the run may be about to use the newer ones.
        newest = max(capabilities, default=None)
        if newest is None or newest >= needed.capability:
            return None
        major, minor = needed.capability
        return (
            f"{needed.dtype} needs compute capability {major}.{minor} ({needed.family}) or newer, and this machine's"
            f" GPUs have {newest[0]}.{newest[1]}; use {needed.instead}"
        )

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)

    def memory(self, device: torch.device) -> dict[str, int]:
        return {
            "allocated_bytes": torch.cuda.memory_allocated(device),
            "reserved_bytes": torch.cuda.memory_reserved(device),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        }


class _Needed(NamedTuple):
    """What a dtype needs of a GPU."""

    dtype: str
    capability: tuple[int, int]
    family: str
    """GPUs that had it first."""
    instead: str
    """A precision for older GPUs."""


def _needed_capability(precision: str) -> _Needed | None:
    if precision.startswith("bf16"):
        return _Needed("bfloat16", (8, 0), "Ampere", "16-mixed")
    if precision.startswith("float8") and not precision.endswith("-emulated"):
        return _Needed("float8", (8, 9), "Ada", "bf16-mixed")
    return None


def _has_driver() -> bool:
    if torch.version.hip is not None:
        return Path("/dev/kfd").exists()
    # On Windows the library has another name and place; there, PyTorch's own count decides.
    return os.name == "nt" or load_driver() is not None
