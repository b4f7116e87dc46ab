"""`SingleDeviceXLAStrategy`: one XLA device, one process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    LocalCollectives,
    Precision,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem_xla.base import XlaStrategy
from stratagem_xla.prepared import XlaPrepared
from stratagem_xla.sharding import Layout


class SingleDeviceXLAStrategy(XlaStrategy):
    """Trains in this process on one XLA device.

    Args:
        device: the device; the run's own choice when None.
        accelerator: an accelerator object or name that wins over the run's choice.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        debug: let torch_xla analyse why it compiles and waits: xla-debug.txt and xla-metrics.txt in the run's folder.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        accelerator: Accelerator | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        debug: bool = False,
    ) -> None:
        super().__init__(accelerator, checkpoint_io, precision_plugin, debug)
        self.parallel_devices = [torch.device(device)] if device is not None else None

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Start PJRT's client."""
        # A process sees all devices; one with a high index needs those before it.
        self.start(request, (request.device.index or 0) + 1, spmd=False)
        return LocalCollectives(request.device)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module on the device."""
        self.direct_output(request)
        return XlaPrepared(request, Layout(1, "data"))
