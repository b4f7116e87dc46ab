"""`Defaults`: implements all hooks, for those that no plugin implements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.plugin.hookspecs import hookimpl

if TYPE_CHECKING:
    from stratagem.checkpoint.base import Checkpointer
    from stratagem.collectives.base import Collectives
    from stratagem.launchers.base import Launcher
    from stratagem.plugin import requests
    from stratagem.precision.base import Precision
    from stratagem.strategies.prepared import Prepared


class Defaults:
    """One process on one device, the selected precision and checkpointer, the installed launcher."""

    @hookimpl(trylast=True)
    def launch(self, request: requests.LaunchRequest) -> Launcher:
        from stratagem.launchers.in_process import InProcessLauncher

        if request.environment.creates_processes or request.plan.world_size == 1:
            return InProcessLauncher()
        return request.create(request.plan)

    @hookimpl(trylast=True)
    def reduce(self, request: requests.ReduceRequest) -> Collectives:
        from stratagem.collectives.local import LocalCollectives

        return LocalCollectives(request.device)

    @hookimpl(trylast=True)
    def precision(self, request: requests.PrecisionRequest) -> Precision:
        return request.create(request.name, request.device)

    @hookimpl(trylast=True)
    def setup(self, request: requests.SetupRequest) -> Prepared:
        from stratagem.strategies.prepared import Prepared

        return Prepared(request)

    @hookimpl(trylast=True)
    def checkpoint(self, request: requests.CheckpointRequest) -> Checkpointer:
        checkpointer: Checkpointer = request.create(request.collectives)
        return checkpointer
