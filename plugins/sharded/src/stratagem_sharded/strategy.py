"""`DDPShardedStrategy`: ddp whose ranks share out the optimizer states (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from stratagem_ddp import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState

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
from stratagem_sharded.prepared import ManualShardedPrepared, ShardedPrepared


class DDPShardedStrategy(DDPStrategy):
    """DistributedDataParallel with optimizer states sharded by torch's ZeroRedundancyOptimizer.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: this node's devices, one per process.
        cluster_environment: an environment, its class or its name; wins over detection.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        parameters_as_bucket_view: keep each rank's parameters in one buffer and send it in one piece
            after a step, instead of one broadcast per parameter. All parameters of an optimizer must
            then have one dtype, and none may be in two optimizers.
        ddp_comm_state: as for `DDPStrategy`.
        ddp_comm_hook: as for `DDPStrategy`.
        ddp_comm_wrapper: as for `DDPStrategy`.
        process_group_backend: as "gloo" or "nccl"; the accelerator's own when None.
        timeout: after which a collective that a rank doesn't join fails; 30 minutes when None.
        timeout_s: the same in seconds, for the command line.
        start_method: "forkserver", "popen", "spawn" or "fork".
        buffers: as for `DDPStrategy`.
        kwargs: any further keyword of `torch.nn.parallel.DistributedDataParallel`.

    Raises:
        ConfigError: a keyword that neither this class nor DistributedDataParallel has.
    """

    optimizer_cuts = ("parameters",)

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: Environment | type[Environment] | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        parameters_as_bucket_view: bool = False,
        ddp_comm_state: object | None = None,
        ddp_comm_hook: Callable[..., Any] | str | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str = "forkserver",
        timeout_s: float | None = None,
        buffers: str = "equal",
        **kwargs: Any,
    ) -> None:
        averages = [name for name in ("model_averaging_period", "period_group_size") if kwargs.get(name)]
        if averages or ddp_comm_hook == "post_local_sgd" or isinstance(ddp_comm_state, PostLocalSGDState):
            raise ConfigError(
                f"{averages[0] if averages else 'post-local SGD'} lets parameters differ between ranks, and sharded "
                "optimizers keep them equal: leave it out, or choose strategy='ddp'"
            )
        super().__init__(
            accelerator,
            parallel_devices,
            cluster_environment,
            checkpoint_io,
            precision_plugin,
            ddp_comm_state=ddp_comm_state,
            ddp_comm_hook=ddp_comm_hook,
            ddp_comm_wrapper=ddp_comm_wrapper,
            process_group_backend=process_group_backend,
            timeout=timeout,
            timeout_s=timeout_s,
            start_method=start_method,
            buffers=buffers,
            **kwargs,
        )
        self.parameters_as_bucket_view = parameters_as_bucket_view

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica whose optimizers are sharded."""
        if not request.loop.training:
            return super().setup(request)
        return (ManualShardedPrepared if request.loop.manual else ShardedPrepared)(request, self)
