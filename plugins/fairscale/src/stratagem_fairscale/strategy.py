"""`FairScaleShardedStrategy`: ranks distribute optimizer states and gradients, by FairScale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem_sharding.untrained_replica import UntrainedReplica

from stratagem import (
    ConfigError,
    Prepared,
    ProcessGroupStrategy,
    SetupRequest,
    hookimpl,
)
from stratagem_fairscale import library

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions

BUFFER_SIZE = 2**23
"""FairScale's own default."""


class FairScaleShardedStrategy(ProcessGroupStrategy):
    """FairScale's OSS and ShardedDDP (ZeRO-2, https://arxiv.org/abs/1910.02054), in one process per device.

    Each rank keeps the optimizer states and, after a backward, the gradients of its own part of the parameters.

    Args:
        reduce_buffer_size: elements of the buffer in which small gradients for a rank are sent together. Its memory
            is kept; 0 sends each gradient separately, and frees it at once. None is 2**23, or 0 with reduce_fp16.
        reduce_fp16: send gradients as float16, which halves the bytes. Each is sent separately.
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: FairScale isn't installed, or a value isn't one of those above.
    """

    optimizer_cuts = ("parameters",)

    def __init__(
        self,
        *,
        reduce_buffer_size: int | None = None,
        reduce_fp16: bool = False,
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        if reduce_buffer_size is None:
            reduce_buffer_size = 0 if reduce_fp16 else BUFFER_SIZE
        if reduce_buffer_size < 0:
            raise ConfigError(
                f"reduce_buffer_size={reduce_buffer_size} is no number of elements: give 0 or more, as 2**23"
            )
        if reduce_fp16 and reduce_buffer_size:
            raise ConfigError(
                f"reduce_fp16 sends each gradient separately, and reduce_buffer_size={reduce_buffer_size} sends "
                "several together: leave one of them out"
            )
        library.require("fairscale_sharded")
        self.reduce_buffer_size = reduce_buffer_size
        self.reduce_fp16 = reduce_fp16

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return a replica whose optimizer states and gradients are sharded over the ranks."""
        from stratagem_fairscale.prepared import FairScaleShardedPrepared

        if request.collectives.world_size == 1:
            return Prepared(request)
        if not request.loop.training:
            return UntrainedReplica(request)
        return FairScaleShardedPrepared(request, self)
