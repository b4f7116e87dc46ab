"""`DDPShardedStrategy`: ddp whose ranks distribute the optimizer states (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratagem_ddp import DDPOptions, DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState

from stratagem import (
    ConfigError,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem_sharded.prepared import ManualShardedPrepared, ShardedPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DDPShardedStrategy(DDPStrategy):
    """DistributedDataParallel with optimizer states sharded by torch's ZeroRedundancyOptimizer.

    Args:
        parameters_as_bucket_view: keep each rank's parameters in one buffer and send it in one message
            after a step, instead of one broadcast per parameter. All parameters of an optimizer must
            then have one dtype, and none may be in two optimizers.
        ddp_comm_state: as for `DDPStrategy`.
        ddp_comm_hook: as for `DDPStrategy`.
        ddp_comm_wrapper: as for `DDPStrategy`.
        options: those of `DDPOptions`.

    Raises:
        ConfigError: a keyword that neither this class nor DistributedDataParallel has.
    """

    optimizer_cuts = ("parameters",)

    def __init__(
        self,
        *,
        parameters_as_bucket_view: bool = False,
        ddp_comm_state: object | None = None,
        ddp_comm_hook: Callable[..., Any] | str | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        **options: Unpack[DDPOptions],
    ) -> None:
        averages = [name for name in ("model_averaging_period", "period_group_size") if options.get(name)]
        if averages or ddp_comm_hook == "post_local_sgd" or isinstance(ddp_comm_state, PostLocalSGDState):
            raise ConfigError(
                f"{averages[0] if averages else 'post-local SGD'} lets parameters differ between ranks, and sharded "
                "optimizers keep them equal: leave it out, or choose strategy='ddp'"
            )
        super().__init__(
            ddp_comm_state=ddp_comm_state,
            ddp_comm_hook=ddp_comm_hook,
            ddp_comm_wrapper=ddp_comm_wrapper,
            **options,
        )
        self.parameters_as_bucket_view = parameters_as_bucket_view

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica whose optimizers are sharded."""
        if not request.loop.training:
            return super().setup(request)
        return (ManualShardedPrepared if request.loop.manual else ShardedPrepared)(request, self)
