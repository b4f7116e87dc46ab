"""`SingleDeviceXLAStrategy`: one XLA device, one process."""

from __future__ import annotations

import os
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
    Strategy,
    hookimpl,
)
from stratagem_xla import client, library
from stratagem_xla.prepared import XlaPrepared
from stratagem_xla.sharding import Layout


class SingleDeviceXLAStrategy(Strategy):
    """Trains in this process on one XLA device.

    Args:
        device: the device; the run's own choice when None.
        accelerator: an accelerator object or name that wins over the run's choice.
        checkpoint_io: makes the run's checkpointer from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        debug: let torch_xla analyse why it compiles and waits; it goes to the terminal.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        accelerator: Accelerator | str | None = None,
        checkpoint_io: Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        debug: bool = False,
    ) -> None:
        super().__init__(accelerator, checkpoint_io, precision_plugin)
        self.parallel_devices = [torch.device(device)] if device is not None else None
        self.debug = debug

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Start PJRT's client."""
        if self.debug:
            os.environ.setdefault("PT_XLA_DEBUG_LEVEL", "2")
        # A process sees all devices; the one with the highest index needs all before it.
        client.start(library.device_type(), (request.device.index or 0) + 1, spmd=False)
        client.seed()
        return LocalCollectives(request.device)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module on the device."""
        return XlaPrepared(request, Layout(1, "data"))
