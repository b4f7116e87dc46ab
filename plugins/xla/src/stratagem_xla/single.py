"""`SingleDeviceXLAStrategy`: one XLA device, one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stratagem import (
    Collectives,
    LocalCollectives,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem_xla.base import XlaStrategy
from stratagem_xla.prepared import XlaPrepared
from stratagem_xla.sharding import Layout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import StrategyOptions


class SingleDeviceXLAStrategy(XlaStrategy):
    """Trains in this process on one XLA device.

    Args:
        device: the device; the run's own choice when None.
        debug: let torch_xla analyse why it compiles and waits: xla-debug.txt and xla-metrics.txt in the run's folder.
        options: those of `StrategyOptions`.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        *,
        debug: bool = False,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(debug=debug, **options)
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
