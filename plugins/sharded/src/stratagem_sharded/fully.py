"""`DDPFullyShardedStrategy`: ranks distribute optimizer states and gradients (ZeRO-2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from stratagem_sharding.kept_shards import KeptShards
from stratagem_sharding.rank_buffers import check_buffers
from stratagem_sharding.whole_steps import reason_despite_wholes
from torch import nn

from stratagem import (
    Prepared,
    ProcessGroupStrategy,
    SetupRequest,
    hookimpl,
)
from stratagem_sharded.fully_prepared import FullyShardedPrepared

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions


class DDPFullyShardedStrategy(ProcessGroupStrategy):
    """Data parallel on torch's `fully_shard`, with parameters whole from the forward to the backward's end.

    Args:
        blocks: classes of submodules, or their names, whose gradients are reduced and freed as soon as
            their own backward is done; they must be called through their forward. None takes the large
            members of `nn.ModuleList`s and `nn.Sequential`s, [] none: then all at once.
        reduce_each_micro_batch: keep gradients in shards between the micro-batches of a step. False
            keeps them whole and reduces once, which is less traffic and more memory.
        broadcast_buffers: give all ranks rank 0's buffers before each training forward, as ddp does.
        buffers: "equal", which refuses buffers other than running statistics that have come to differ, or "local",
            which is also `broadcast_buffers=False`: each rank keeps its own, also in checkpoints.
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: a value that isn't allowed.
    """

    optimizer_cuts = ("rows",)

    def __init__(
        self,
        *,
        blocks: Sequence[type[nn.Module] | str] | None = None,
        reduce_each_micro_batch: bool = True,
        broadcast_buffers: bool = True,
        buffers: Literal["equal", "local"] = "equal",
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        self.blocks = [blocks] if isinstance(blocks, str) else blocks
        self.reduce_each_micro_batch = reduce_each_micro_batch
        check_buffers(buffers)
        self.buffers = buffers if broadcast_buffers else "local"
        self.broadcast_buffers = self.buffers == "equal"

    def refuse_optimizer(self, optimizer: Optimizer, world_size: int) -> str | None:
        """Refuse nothing: what can't step shards steps whole tensors, each on one rank or all on every rank."""
        reason = super().refuse_optimizer(optimizer, world_size)
        return reason_despite_wholes(self, optimizer, reason)

    def can_restore(self, shards: object) -> bool:
        """What left a module of DTensors: this strategy, or another on `fully_shard`."""
        return isinstance(shards, KeptShards)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module whose parameters are sharded between steps; a whole one for a single rank."""
        if request.collectives.world_size == 1:
            return Prepared(request)
        return FullyShardedPrepared(request, self)
