"""`DDPFullyShardedStrategy`: ranks share out optimizer states and gradients (ZeRO-2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from stratagem_sharding.kept_shards import KeptShards
from stratagem_sharding.rank_buffers import check_buffers
from torch import nn

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    Environment,
    Precision,
    Prepared,
    ProcessGroupStrategy,
    SetupRequest,
    hookimpl,
)
from stratagem_sharded.fully_prepared import FullyShardedPrepared


class DDPFullyShardedStrategy(ProcessGroupStrategy):
    """Data parallel on torch's `fully_shard`, with parameters whole from the forward to the backward's end.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: this node's devices, one per process.
        cluster_environment: an environment, its class or its name; wins over detection.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        blocks: classes of submodules, or their names, whose gradients are reduced and freed as soon as
            their own backward is done; they must be called through their forward. None takes the large
            members of `nn.ModuleList`s and `nn.Sequential`s, [] none: then all at once.
        reduce_each_micro_batch: keep gradients in shards between the micro-batches of a step. False
            keeps them whole and reduces once, which is less traffic and more memory.
        broadcast_buffers: give all ranks rank 0's buffers before each training forward, as ddp does.
        process_group_backend: as "gloo" or "nccl"; the accelerator's own when None.
        timeout: after which a collective that a rank doesn't join fails; 30 minutes when None.
        timeout_s: the same in seconds, for the command line.
        start_method: "forkserver", "popen", "spawn" or "fork".
        buffers: "equal", which refuses buffers other than running statistics that have come to differ, or "local",
            which is also `broadcast_buffers=False`: each rank keeps its own, also in checkpoints.

    Raises:
        ConfigError: a value that isn't allowed.
    """

    optimizer_cuts = ("rows",)

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: Environment | type[Environment] | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        blocks: Sequence[type[nn.Module] | str] | None = None,
        reduce_each_micro_batch: bool = True,
        broadcast_buffers: bool = True,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str = "forkserver",
        timeout_s: float | None = None,
        buffers: str = "equal",
    ) -> None:
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
        )
        self.blocks = [blocks] if isinstance(blocks, str) else blocks
        self.reduce_each_micro_batch = reduce_each_micro_batch
        check_buffers(buffers)
        self.buffers = buffers if broadcast_buffers else "local"
        self.broadcast_buffers = self.buffers == "equal"

    def takes_up(self, shards: object) -> bool:
        """What left a module of DTensors: this strategy, or another on `fully_shard`."""
        return isinstance(shards, KeptShards)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module whose parameters are sharded between steps; a whole one for a single rank."""
        if request.collectives.world_size == 1:
            return Prepared(request)
        return FullyShardedPrepared(request, self)
