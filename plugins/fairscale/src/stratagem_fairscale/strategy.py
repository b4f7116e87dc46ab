"""`FairScaleShardedStrategy`: ranks share out optimizer states and gradients, by FairScale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    ConfigError,
    Environment,
    Precision,
    Prepared,
    ProcessGroupStrategy,
    SetupRequest,
    hookimpl,
)
from stratagem_fairscale import library

BUFFER_SIZE = 2**23
"""FairScale's own."""


class FairScaleShardedStrategy(ProcessGroupStrategy):
    """FairScale's OSS and ShardedDDP (ZeRO-2, https://arxiv.org/abs/1910.02054), in one process per device.

    Each rank keeps the optimizer states of its part of the parameters and, after a backward, the gradients of these.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: this node's devices, one per process.
        cluster_environment: an environment, its class or its name; wins over detection.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        reduce_buffer_size: gradients that fit are sent together, in one message of at most so many elements for each
            rank, whose memory stays; 0 sends each by itself, and frees it at once. 2**23 when None.
        reduce_fp16: send gradients as float16, which halves the bytes: each by itself.
        process_group_backend: as "gloo" or "nccl"; the accelerator's own when None.
        timeout: after which a collective that a rank doesn't join fails; 30 minutes when None.
        timeout_s: the same in seconds, for the command line.
        start_method: "forkserver", "popen", "spawn" or "fork".

    Raises:
        ConfigError: FairScale isn't installed, or a value isn't one of those above.
    """

    optimizer_cuts = ("parameters",)

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: Environment | type[Environment] | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        reduce_buffer_size: int | None = None,
        reduce_fp16: bool = False,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str = "forkserver",
        timeout_s: float | None = None,
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
        if reduce_buffer_size is None:
            reduce_buffer_size = 0 if reduce_fp16 else BUFFER_SIZE
        if reduce_buffer_size < 0:
            raise ConfigError(
                f"reduce_buffer_size={reduce_buffer_size} is no number of elements: give 0 or more, as 2**23"
            )
        if reduce_fp16 and reduce_buffer_size:
            raise ConfigError(
                f"reduce_fp16 sends each gradient by itself, and reduce_buffer_size={reduce_buffer_size} sends "
                "several together: leave one of them out"
            )
        library.require("fairscale_sharded")
        self.reduce_buffer_size = reduce_buffer_size
        self.reduce_fp16 = reduce_fp16

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica whose optimizer states and gradients are shared out."""
        from stratagem_fairscale.prepared import FairScaleShardedPrepared, ReplicaPrepared

        if request.collectives.world_size == 1:
            return Prepared(request)
        if not request.loop.training:
            return ReplicaPrepared(request)
        return FairScaleShardedPrepared(request, self)
