"""Graphcore IPUs."""

from __future__ import annotations

import torch

from stratagem import Accelerator, Availability
from stratagem_ipu import library


class IPUAccelerator(Accelerator):
    """IPUs that poptorch compiles for. Modules and batches stay on the CPU: poptorch moves them.

    Never tried on a device: written against Graphcore's documentation.
    """

    name = "ipu"
    has_distinct_devices = False

    def availability(self) -> Availability:
        problem = library.problem()
        if problem is not None:
            return Availability(False, problem)
        count = self.device_count()
        if count == 0:
            return Availability(False, "poptorch finds no IPU on this machine")
        return Availability(True, f"{count} IPU{'s' * (count != 1)}")

    def device_count(self) -> int:
        return library.ipu_count()

    def default_devices(self) -> int:
        """One: several split each batch."""
        return min(1, self.device_count())

    def device(self, index: int) -> torch.device:
        return torch.device("cpu")

    def refuse_precision(self, precision: str) -> str | None:
        return None if precision == "32-true" else "nothing else was written for it; use 32-true"
