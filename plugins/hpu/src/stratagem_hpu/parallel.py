"""`HPUParallelStrategy`: a replica per Gaudi processor, gradients averaged while backward runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from stratagem_ddp import DDPOptions, DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stratagem import (
    ConfigError,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem_hpu import library
from stratagem_hpu.prepared import HPUDDPPrepared, HPUReplicaPrepared, ManualHPUDDPPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.runs import Run

NOT_HERE = (
    "ddp_comm_state",
    "ddp_comm_hook",
    "ddp_comm_wrapper",
    "model_averaging_period",
    "period_group_size",
)


class HPUParallelStrategy(DDPStrategy):
    """DistributedDataParallel in one process per Gaudi processor, over HCCL. Never tried on a device.

    Args:
        options: those of `DDPOptions`.

    Raises:
        ConfigError: a keyword that DistributedDataParallel doesn't have, or one of `DDPStrategy` that wasn't made for
            this device.
    """

    def __init__(self, **options: Unpack[DDPOptions]) -> None:
        refused = [name for name in NOT_HERE if name in options]
        if refused:
            raise ConfigError(
                f"strategy hpu_parallel has no setting {refused[0]!r}: gradients are averaged by HCCL; leave it out"
            )
        super().__init__(**options)

    def setup_worker(self, run: Run) -> None:
        """Say which processor this process gets, and register the backend, before anything touches the device."""
        os.environ[library.MODULE_VARIABLE] = str(run.environment.local_rank)
        library.load_hccl()
        super().setup_worker(run)

    def teardown(self) -> None:
        """Take the variable away again."""
        super().teardown()
        os.environ.pop(library.MODULE_VARIABLE, None)

    def configure_ddp(self, module: nn.Module, device: torch.device) -> DistributedDataParallel:
        """Wrap `module`, which is on `device`; override it to wrap differently. Collective."""
        # As Intel documents it: a process has one device, so DistributedDataParallel gets no device_ids.
        return DistributedDataParallel(module, init_sync=self.init_sync, **self.ddp_kwargs)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica whose gradients are averaged over ranks."""
        if not request.loop.training:
            return HPUReplicaPrepared(request)
        if request.loop.manual:
            return ManualHPUDDPPrepared(request, self.manual_dtype())
        return HPUDDPPrepared(request, self)
