"""GPUs that PyTorch reaches as `cuda`."""

from __future__ import annotations

import os
from pathlib import Path

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
        if not precision.startswith("bf16"):
            return None
        driver = load_driver()
        capabilities = compute_capabilities(driver) if driver is not None else []
        # With GPUs of several kinds, the run may be about to use the newer ones.
        newest = max(capabilities, default=None)
        if newest is None or newest >= (8, 0):
            return None
        return (
            "bfloat16 needs compute capability 8.0 (Ampere) or newer, and this machine's GPUs have"
            f" {newest[0]}.{newest[1]}; use 16-mixed"
        )

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)

    def memory(self, device: torch.device) -> dict[str, int]:
        return {
            "allocated_bytes": torch.cuda.memory_allocated(device),
            "reserved_bytes": torch.cuda.memory_reserved(device),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        }


def _has_driver() -> bool:
    if torch.version.hip is not None:
        return Path("/dev/kfd").exists()
    # On Windows the library has another name and place; there, PyTorch's own count decides.
    return os.name == "nt" or load_driver() is not None
