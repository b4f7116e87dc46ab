"""xla_fsdp with spmd=False in several processes on a CPU: gloo stands for the links between a TPU's chips.

PJRT's CPU connects no processes. What is ours, and what torch_xla's wrapper does in Python, runs as on
a TPU; only the three operations between devices go by way of the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from stratagem_xla import XLAFSDPStrategy
from stratagem_xla.base import XlaStrategy
from stratagem_xla.library import OWN_DEVICE
from stratagem_xla.plugin import ACCELERATORS, ONE_DEVICE, PRECISIONS
from torch import Tensor

from stratagem import (
    Capabilities,
    Collectives,
    Launcher,
    LaunchRequest,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem.resolve.defaults import Defaults


class HostFSDP(XLAFSDPStrategy):
    capabilities = Capabilities(accelerators=ACCELERATORS, precisions=PRECISIONS, features=ONE_DEVICE)

    def __init__(self, **options: Any) -> None:
        super().__init__(spmd=False, **options)

    def check_run(self, run: Any) -> None:
        XlaStrategy.check_run(self, run)

    def setup_environment(self) -> None:
        super().setup_environment()
        os.environ[OWN_DEVICE] = "1"

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        collectives = super().open_collectives(request)
        # The next run in this process looks for devices of the machine, and not of the process.
        del os.environ["CPU_NUM_DEVICES"]
        return collectives

    @hookimpl
    def launch(self, request: LaunchRequest) -> Launcher:
        return Defaults().launch(request)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        import torch_xla.distributed.fsdp as fsdp

        given = fsdp.XlaFullyShardedDataParallel
        fsdp.XlaFullyShardedDataParallel = _linked(given, request.collectives)
        try:
            prepared: Any = super().setup(request)
        finally:
            fsdp.XlaFullyShardedDataParallel = given
        prepared._reduce = lambda kind, tensor: request.collectives.all_reduce(tensor, kind)
        return prepared


def _linked(kind: Any, collectives: Collectives) -> Any:
    """torch_xla's wrapper for so many processes, whose operations between devices take the way of the host."""
    size = collectives.world_size

    class Linked(kind):
        def __init__(self, module: Any, **options: Any) -> None:
            super().__init__(
                module,
                sharding_groups=[list(range(size))],
                sharding_rank=collectives.rank,
                sharding_world_size=size,
                **options,
            )
            self.all_gather_op = self._gather
            self.reduce_scatter_op = Scatter(collectives)

        def _gather(self, piece: Tensor, groups: Any) -> Tensor:
            return collectives.all_gather(piece).reshape(-1, *piece.shape[1:])

    return Linked


class Scatter:
    """Sums what all processes have, and gives each its part."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def __call__(self, flat: Tensor, done: Callable[[Tensor], None]) -> None:
        total = self._collectives.all_reduce(flat.cpu(), "sum")
        own = torch.chunk(total, self._collectives.world_size)[self._collectives.rank]
        done(own.to(flat.device))

    def flush(self) -> None:
        """Nothing waits."""
