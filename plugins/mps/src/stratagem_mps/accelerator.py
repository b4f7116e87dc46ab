"""The GPU of an Apple silicon machine."""

from __future__ import annotations

import sys

import torch

from stratagem import Accelerator, Availability


class MpsAccelerator(Accelerator):
    """One GPU per machine, which shares the memory of the CPU. Process groups use gloo."""

    name = "mps"
    autocast_type = "mps"
    backend = "gloo"

    def availability(self) -> Availability:
        if sys.platform != "darwin":
            return Availability(False, "only on macOS")
        if not torch.backends.mps.is_built():
            return Availability(False, f"PyTorch {torch.__version__} is built without MPS")
        if not torch.backends.mps.is_available():
            return Availability(False, "no Apple silicon GPU, or a macOS that is too old for this PyTorch")
        return Availability(True, "1 device")

    def device_count(self) -> int:
        return int(torch.backends.mps.is_available())

    def device(self, index: int) -> torch.device:
        return torch.device("mps", index)

    def refuse_precision(self, precision: str) -> str | None:
        if precision.startswith("64"):
            return "MPS has no float64; use 32-true"
        if precision.startswith("bf16") and not torch.backends.mps.is_macos_or_newer(14, 0):
            return "bfloat16 on MPS needs macOS 14 or newer; use 16-mixed"
        return None

    def synchronize(self, device: torch.device) -> None:
        torch.mps.synchronize()

    def memory(self, device: torch.device) -> dict[str, int]:
        return {
            "allocated_bytes": torch.mps.current_allocated_memory(),
            "reserved_bytes": torch.mps.driver_allocated_memory(),
        }
