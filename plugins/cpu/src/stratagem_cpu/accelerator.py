"""The CPU as an accelerator: one device per process, however many processes."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from stratagem import Accelerator, Availability

PROCESSES_PER_CORE = 64
"""Beyond it, a machine is out of memory or file descriptors before all processes have started."""


class CpuAccelerator(Accelerator):
    """Cores of this machine. A device is a process, and any number of processes share the cores."""

    name = "cpu"
    autocast_type = "cpu"
    backend = "gloo"
    has_distinct_devices = False

    def availability(self) -> Availability:
        count = self.device_count()
        return Availability(True, f"{count} usable core{'s' if count != 1 else ''}")

    def device_count(self) -> int:
        """How many cores this process may use, which can be fewer than the machine has."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def default_devices(self) -> int:
        """One: torch's operators use all cores of a process."""
        return 1

    def device(self, index: int) -> torch.device:
        return torch.device("cpu")

    def check_index(self, index: int) -> str | None:
        """There can be more processes than cores, but not beyond all measure."""
        most = PROCESSES_PER_CORE * self.device_count()
        if index < most:
            return None
        cores = self.device_count()
        return f"its {cores} usable core{'s' if cores != 1 else ''} can bear {most} processes at most"

    def refuse_precision(self, precision: str) -> str | None:
        if precision == "16-true":
            return "float16 arithmetic on a CPU gives NaN and is very slow; use bf16-true"
        return None

    def memory(self, device: torch.device) -> dict[str, int]:
        """Physical memory of this process, on Linux."""
        try:
            resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return {}
        return {"resident_bytes": resident_pages * os.sysconf("SC_PAGE_SIZE")}
