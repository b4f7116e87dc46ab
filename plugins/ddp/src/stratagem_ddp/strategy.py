"""`DDPStrategy`: a replica per device, gradients averaged while backward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    ConfigError,
    Environment,
    ParallelStrategy,
    Precision,
    Prepared,
    ProcessGroupCollectives,
    ReduceRequest,
    SetupRequest,
    deadline,
    hookimpl,
)
from stratagem_ddp.prepared import DDPPrepared, ManualDDPPrepared, ReplicaPrepared

START_METHODS = ("forkserver", "popen", "spawn", "fork")
OWN = ("module", "device_ids", "output_device", "process_group", "device_mesh")


class DDPStrategy(ParallelStrategy):
    """DistributedDataParallel in one process per device, on one node or several.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: this node's devices, one per process.
        cluster_environment: an environment's class or name that wins over detection.
        checkpoint_io: makes the run's checkpointer from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        ddp_comm_state: state for `ddp_comm_hook`, as `PowerSGDState` or `PostLocalSGDState`.
        ddp_comm_hook: reduces a bucket of gradients instead of DDP's own all-reduce; see
            `torch.distributed.algorithms.ddp_comm_hooks`.
        ddp_comm_wrapper: applied to `ddp_comm_hook`, as `fp16_compress_wrapper`.
        model_averaging_period: average parameters over ranks every so many optimizer steps; with a
            `PostLocalSGDState`, from its `start_localSGD_iter` on.
        process_group_backend: as "gloo" or "nccl"; the accelerator's own when None.
        timeout: after which a collective that a rank doesn't join fails; 30 minutes when None.
        timeout_s: the same in seconds, for the command line.
        start_method: "forkserver", "popen", "spawn" or "fork".
        kwargs: any further keyword of `torch.nn.parallel.DistributedDataParallel`.

    Raises:
        ConfigError: a keyword that neither this class nor DistributedDataParallel has.
    """

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: type[Environment] | str | None = None,
        checkpoint_io: Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        ddp_comm_state: object | None = None,
        ddp_comm_hook: Callable[..., Any] | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        model_averaging_period: int | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        timeout_s: float | None = None,
        start_method: str = "forkserver",
        **kwargs: Any,
    ) -> None:
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin)
        self.ddp_comm_state = ddp_comm_state
        self.ddp_comm_hook = ddp_comm_hook
        self.ddp_comm_wrapper = ddp_comm_wrapper
        self.model_averaging_period = model_averaging_period
        self.process_group_backend = process_group_backend
        self.timeout = deadline(timeout, timeout_s)
        self.start_method = start_method
        self.ddp_kwargs = kwargs
        self._check()

    def _check(self) -> None:
        allowed = [name for name in signature(DistributedDataParallel).parameters if name not in OWN]
        unknown = sorted(set(self.ddp_kwargs) - set(allowed))
        if unknown:
            ours = [name for name in signature(DDPStrategy).parameters if name != "kwargs"]
            raise ConfigError(
                f"strategy ddp has no setting {unknown[0]!r}; it has {', '.join(ours)}, and those of "
                f"DistributedDataParallel: {', '.join(allowed)}"
            )
        if self.start_method not in START_METHODS:
            raise ConfigError(f"start_method={self.start_method!r} is none of {', '.join(START_METHODS)}")
        if self.model_averaging_period is not None and self.model_averaging_period < 1:
            raise ConfigError(
                f"model_averaging_period={self.model_averaging_period} must be at least 1 optimizer step"
            )
        if self.ddp_comm_hook is None and (self.ddp_comm_wrapper or self.ddp_comm_state):
            raise ConfigError(
                "ddp_comm_state and ddp_comm_wrapper need a ddp_comm_hook: give one, or neither"
            )

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group; see `ProcessGroupCollectives`."""
        backend = self.process_group_backend or request.accelerator.backend
        return ProcessGroupCollectives(request.environment, request.device, backend, self.timeout)

    def configure_ddp(self, module: nn.Module, device: torch.device) -> DistributedDataParallel:
        """Wrap `module`, which is on `device`; override it to wrap differently. Collective."""
        device_ids = None if device.type == "cpu" else [device]
        return DistributedDataParallel(module, device_ids=device_ids, **self.ddp_kwargs)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica whose gradients are averaged over ranks."""
        if not request.training or not any(p.requires_grad for p in request.module.parameters()):
            return ReplicaPrepared(request)
        if request.manual:
            if self.ddp_comm_hook is not None:
                raise ConfigError(
                    "a ddp_comm_hook works on DDP's own buckets, which manual optimization doesn't use: leave it "
                    "out, or set automatic_optimization = True"
                )
            return ManualDDPPrepared(request)
        return DDPPrepared(request, self)
