"""Intel Gaudi processors."""

from __future__ import annotations

import torch

from stratagem import Accelerator, Availability
from stratagem_hpu import library
from stratagem_hpu.plugin import PRECISIONS


class HPUAccelerator(Accelerator):
    """Gaudi processors, one per process: a process calls its own "hpu", and sees no other.

    Never tried on a device: written against Intel's documentation.
    """

    name = "hpu"
    autocast_type = "hpu"
    backend = "hccl"
    has_distinct_devices = False

    def availability(self) -> Availability:
        problem = library.problem()
        if problem is not None:
            return Availability(False, problem)
        count = self.device_count()
        if count == 0:
            return Availability(False, "habana_frameworks finds no Gaudi processor that is free")
        return Availability(True, f"{count} Gaudi processor{'s' * (count != 1)}")

    def device_count(self) -> int:
        return 0 if library.problem() else int(library.load_hpu().device_count())

    def device(self, index: int) -> torch.device:
        return torch.device("hpu")

    def set_up(self, device: torch.device) -> None:
        """Import habana_frameworks, which takes hold of the processor when it is first used."""
        library.load()

    def refuse_precision(self, precision: str) -> str | None:
        if precision in PRECISIONS:
            return None
        return "Gaudi has no float64, and no loss scaling for float16; use bf16-mixed"

    def synchronize(self, device: torch.device) -> None:
        library.mark_step()
        library.load_hpu().synchronize()

    def memory(self, device: torch.device) -> dict[str, int]:
        return {"allocated_bytes": int(library.load_hpu().memory_allocated())}
