"""Devices that torch_xla compiles for."""

from __future__ import annotations

import os

import torch

from stratagem import Accelerator, Availability
from stratagem_xla import library

MOST_CPU_DEVICES = 64
"""XLA's CPU client has been seen to make this many; each has its own threads."""


class XlaAccelerator(Accelerator):
    """What PJRT has: the kind of device that PJRT_DEVICE names, or TPUs where there are any, or else the CPU.

    XLA's devices on a CPU are virtual: any number of them shares its cores, which is for trying things out.
    """

    name = "xla"
    autocast_type = "xla"
    backend = "gloo"

    @property
    def kind(self) -> str:
        """Kind as in PJRT_DEVICE: "TPU", "CPU"."""
        return library.device_type()

    def availability(self) -> Availability:
        problem = library.problem() or library.device_problem(self.kind)
        if problem is not None:
            return Availability(False, problem)
        count = self.device_count()
        return Availability(True, f"{count} {self.kind} device{'s' if count != 1 else ''} by PJRT")

    def device_count(self) -> int:
        if library.problem() or library.device_problem(self.kind):
            return 0
        return library.device_count(self.kind)

    def default_devices(self) -> int:
        """All; of the CPU, whose devices share its cores, one unless CPU_NUM_DEVICES says more."""
        if self.kind == "CPU" and "CPU_NUM_DEVICES" not in os.environ:
            return 1
        return self.device_count()

    def check_index(self, index: int) -> str | None:
        """There can be more of the CPU's virtual devices than cores."""
        if self.kind != "CPU" or "CPU_NUM_DEVICES" in os.environ:
            return super().check_index(index)
        return None if 0 <= index < MOST_CPU_DEVICES else f"PJRT's CPU has {MOST_CPU_DEVICES} at most"

    def device(self, index: int) -> torch.device:
        # A process that has one device calls it the first, whichever of its machine's it is.
        return torch.device("xla", 0 if library.OWN_DEVICE in os.environ else index)

    def set_up(self, device: torch.device) -> None:
        """Import torch_xla, without starting it: the number of devices is the strategy's to say."""
        os.environ.setdefault("PJRT_DEVICE", self.kind)
        library.load()

    def refuse_precision(self, precision: str) -> str | None:
        if precision.startswith("16"):
            return "XLA devices compute in bfloat16 instead of float16; use bf16-mixed or bf16-true"
        return None

    def synchronize(self, device: torch.device) -> None:
        import torch_xla.core.xla_model as xm

        xm.mark_step()
        xm.wait_device_ops()

    def memory(self, device: torch.device) -> dict[str, int]:
        """Bytes in use and in all, where PJRT reports them (TPU)."""
        import torch_xla.core.xla_model as xm

        if self.kind == "CPU":
            return {}
        info = xm.get_memory_info(device)
        return {"allocated_bytes": int(info["bytes_used"]), "limit_bytes": int(info["bytes_limit"])}


class TpuAccelerator(XlaAccelerator):
    """TPUs alone: where there are none, it isn't available."""

    name = "tpu"

    @property
    def kind(self) -> str:
        return "TPU"

    def availability(self) -> Availability:
        named = os.environ.get("PJRT_DEVICE")
        if named not in (None, "", "TPU") and library.tpu_devices():
            return Availability(False, f"PJRT_DEVICE={named} asks for another device; unset it")
        return super().availability()

    def device_count(self) -> int:
        return super().device_count() if os.environ.get("PJRT_DEVICE", "TPU") in ("", "TPU") else 0
