"""An asynchronous device without hardware, for tests."""

from __future__ import annotations

import torch

from stratagem import Accelerator, Availability
from stratagem_sim.build import compiler
from stratagem_sim.device import SimSettings, load


class SimAccelerator(Accelerator):
    """Devices whose work runs late, on threads of this process; for tests.

    The device is built and loaded when it is first asked for a `torch.device`.
    """

    name = "sim"
    autocast_type = "sim"
    backend = "sim"

    def availability(self) -> Availability:
        if compiler() is None:
            return Availability(False, "no C++ compiler: install g++, or set CXX")
        count = self.device_count()
        return Availability(True, f"{count} simulated device{'s' if count != 1 else ''}, for tests")

    def device_count(self) -> int:
        return SimSettings.from_environ().devices if compiler() is not None else 0

    def device(self, index: int) -> torch.device:
        load()
        return torch.device("sim", index)

    def set_up(self, device: torch.device) -> None:
        load()
        torch.accelerator.set_device_index(device.index or 0)

    def synchronize(self, device: torch.device) -> None:
        torch.accelerator.synchronize(device)

    def memory(self, device: torch.device) -> dict[str, int]:
        return {
            "allocated_bytes": torch.accelerator.memory_allocated(device),
            "reserved_bytes": torch.accelerator.memory_reserved(device),
            "peak_allocated_bytes": torch.accelerator.max_memory_allocated(device),
        }
