"""`HPUParallelStrategy`: a replica per Gaudi processor, gradients averaged while backward runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from stratagem_ddp import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    ConfigError,
    Environment,
    Precision,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem_hpu import library
from stratagem_hpu.prepared import HPUDDPPrepared, HPUReplicaPrepared, ManualHPUDDPPrepared

if TYPE_CHECKING:
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
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: this node's devices, one per process.
        cluster_environment: an environment, its class or its name; wins over detection.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        process_group_backend: the accelerator's own, "hccl", when None.
        timeout: after which a collective that a rank doesn't join fails; 30 minutes when None.
        timeout_s: the same in seconds, for the command line.
        start_method: "forkserver", "popen" or "spawn".
        kwargs: any further keyword of `torch.nn.parallel.DistributedDataParallel`.

    Raises:
        ConfigError: a keyword that DistributedDataParallel doesn't have, or one of `DDPStrategy` that wasn't made for
            this device.
    """

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: Environment | type[Environment] | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str = "forkserver",
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        refused = [name for name in NOT_HERE if name in kwargs]
        if refused:
            raise ConfigError(
                f"strategy hpu_parallel has no setting {refused[0]!r}: gradients are averaged by HCCL; leave it out"
            )
        super().__init__(
            accelerator,
            parallel_devices,
            cluster_environment,
            checkpoint_io,
            precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
            timeout_s=timeout_s,
            start_method=start_method,
            **kwargs,
        )

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
        # As Intel documents it: a process has one device, and DistributedDataParallel isn't told which.
        return DistributedDataParallel(module, init_sync=self.init_sync, **self.ddp_kwargs)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica whose gradients are averaged over ranks."""
        if not request.loop.training:
            return HPUReplicaPrepared(request)
        if request.loop.manual:
            return ManualHPUDDPPrepared(request, self.manual_dtype())
        return HPUDDPPrepared(request, self)
