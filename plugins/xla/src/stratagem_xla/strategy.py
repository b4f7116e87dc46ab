"""`XLAStrategy`: a replica on each XLA device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stratagem import (
    Capabilities,
    Collectives,
    CombinationError,
    Launcher,
    LaunchRequest,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem.sdk.processes import check_start_method
from stratagem.sdk.runs import Defaults
from stratagem_xla import library
from stratagem_xla.base import XlaStrategy
from stratagem_xla.prepared import XlaPrepared, placed
from stratagem_xla.processes import ReplicaPrepared, XlaLauncher, open_collectives
from stratagem_xla.sharding import Layout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import StrategyOptions
    from stratagem.sdk.runs import Run

PJRT_START_METHODS = ("spawn", "fork")


class XLAStrategy(XlaStrategy):
    """Data parallel on XLA devices: by default one process drives them all, and XLA divides the work (SPMD).

    A batch of the loader is that of the whole run: each device gets its part of it. Gradients are those of
    the whole batch, as on a single device.

    Args:
        parallel_devices: XLA devices; wins over the run's `devices`, and only their number matters under SPMD.
        debug: let torch_xla analyse why it compiles and waits: xla-debug.txt and xla-metrics.txt in the run's folder.
        sync_module_states: start from the first process's parameters and buffers, where there are several.
        spmd: False starts a process per device (`torch_xla.launch`), which PJRT's CPU only has for one.
        start_method: of those processes, "spawn" or "fork".
        options: those of `StrategyOptions`.

    Raises:
        ConfigError: another start method.
    """

    axis = "data"

    def __init__(
        self,
        *,
        parallel_devices: Sequence[torch.device] | None = None,
        debug: bool = False,
        sync_module_states: bool = True,
        spmd: bool = True,
        start_method: str = "spawn",
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(debug=debug, **options)
        self.given_devices = parallel_devices
        self.sync_module_states = sync_module_states
        self.spmd = spmd
        self.start_method = check_start_method(start_method, PJRT_START_METHODS)

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """A process per device, or one for all."""
        if self.spmd:
            return declared
        return replace(
            declared,
            processes="per-device",
            start_methods=PJRT_START_METHODS,
            features=declared.features - {"several_devices"},
        )

    def check_run(self, run: Run) -> None:
        """Refuse several processes where PJRT can't have them."""
        super().check_run(run)
        if not self.spmd and len(run.devices) > 1 and library.device_type() == "CPU":
            raise CombinationError(
                f"spmd=False starts a process per device, of which PJRT's CPU only has one, and the run asks for "
                f"{len(run.devices)}: leave spmd=True, which drives any number of them from one process"
            )

    @property
    def parallel_devices(self) -> Sequence[torch.device] | None:  # type: ignore[override]  # the base has an attribute
        """Those that it was given; a process that has one device calls it the first."""
        if self.given_devices and library.OWN_DEVICE in os.environ:
            return [torch.device("xla", 0)] * len(self.given_devices)
        return self.given_devices

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Start PJRT's client; between several processes, open a group of theirs on the CPU."""
        self.start(request, len(request.devices), spmd=self.spmd)
        return open_collectives(request)

    @hookimpl
    def launch(self, request: LaunchRequest) -> Launcher:
        """Answer with torch_xla's own way to start a process per device, where that is asked for."""
        if self.spmd or request.plan.world_size == 1:
            return Defaults().launch(request)
        return XlaLauncher(request)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module that is called with batches cut over the devices."""
        self.direct_output(request)
        layout = Layout(len(request.devices), self.axis)
        if request.collectives.world_size > 1:
            return ReplicaPrepared(request, layout, self.sync_module_states)
        return XlaPrepared(request, layout, replicated(request, layout))


def replicated(request: SetupRequest, layout: Layout) -> Any:
    """Move the module to the devices, all of it to each."""
    module = placed(request)
    for tensor in (*module.parameters(), *module.buffers()):
        # Said of none, XLA might keep the result of a step in shards.
        layout.replicate(tensor.data)
    return module
