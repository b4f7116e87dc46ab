"""What the loop calls per step under ddp_fully_sharded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from stratagem_fsdp import Sharded, UnitPrepared
from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.kept_shards import KeptShards, Refill
from stratagem_sharding.module_snapshot import ModuleSnapshot
from stratagem_sharding.rank_buffers import RankBuffers
from stratagem_sharding.unit_dtypes import refuse_mixed_dtypes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from stratagem import ConfigError, SetupRequest, place
from stratagem_sharded.blocks import blocks_in

if TYPE_CHECKING:
    from stratagem_sharded.fully import DDPFullyShardedStrategy


APART = (
    "put those of one dtype into a module of their own that blocks names, as blocks=['Block'], or choose ddp"
)
"""What to do about several dtypes in one unit."""


class FullyShardedPrepared(UnitPrepared):
    """A module whose parameters are gathered once per step and whose gradients are reduced into shards."""

    strategy_name = "ddp_fully_sharded"
    # torch's `state_dict` frees the parameters that a step has gathered.
    advice = "don't call the module's state_dict() within a step, copy tensors by their names, or choose ddp"

    def __init__(self, request: SetupRequest, strategy: DDPFullyShardedStrategy) -> None:
        for name, parameter in request.original_module.named_parameters():
            if not parameter.numel():
                raise ConfigError(
                    f"parameter {name!r} has no elements that ddp_fully_sharded could distribute: leave it out, or "
                    "choose fsdp or ddp"
                )
            if not parameter.dim():
                raise ConfigError(
                    f"parameter {name!r} has no dimension along which ddp_fully_sharded could share it out: give it "
                    "one, as in torch.ones(1), or choose fsdp or ddp_sharded"
                )
        world_size = request.collectives.world_size
        mesh = init_device_mesh(request.device.type, (world_size,))
        snapshot = ModuleSnapshot(request.module)
        refill: Refill | None = None
        if isinstance(request.left_shards, KeptShards):
            request.left_shards.check_mesh(mesh)
            refill = Refill(request.original_module, request.left_shards, world_size)
            refill.fill(request.module, set())
        module = place(request)
        if refill is None:
            # Each rank keeps a shard of what it has: all must have what rank 0 has.
            broadcast_coalesced((*module.parameters(), *module.buffers()))
        done: set[nn.Module] = set()
        for block in blocks_in(request.original_module, strategy.blocks):
            refuse_mixed_dtypes(block, done, request.original_module, APART)
            done.add(block)
            fully_shard(block, mesh=mesh, reshard_after_forward=False)
        refuse_mixed_dtypes(module, done, request.original_module, APART)
        root: FSDPModule = fully_shard(module, mesh=mesh, reshard_after_forward=False)
        units = tuple(each for each in module.modules() if isinstance(each, FSDPModule))
        if refill is not None:
            refill.finish()
        snapshot.note()
        self._is_own_loop = request.steps is None
        self._reduces_each = strategy.reduce_each_micro_batch
        self._broadcasts = (
            strategy.broadcast_buffers and request.loop.training and any(True for _ in module.buffers())
        )
        super().__init__(
            request,
            module,
            Sharded(units, roots=(root,), whole=(), snapshot=snapshot),
            freed=(),
            step_root=root,
            rank_buffers=RankBuffers(
                request.original_module, request.collectives, local=strategy.buffers == "local"
            ),
        )
        (self._root,) = self.sharded.roots

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.gradients.recover()
        if torch.is_grad_enabled():
            self.rank_buffers.before_forward()
            self._make_buffers_equal()
        with self.explaining(), self.recovering():
            output = super().forward(*args, **kwargs)
        self.order.end_forward(output is None and torch.is_grad_enabled())
        if not torch.is_grad_enabled():
            self.reshard()  # no backward will
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        # The next micro-batch needs the same parameters: they stay whole until the step. A loop of the user's own
        # may look for gradients meanwhile, which shards have and whole parameters don't.
        self._root.set_reshard_after_backward(self._is_own_loop)
        # Hooks that look at what has been accumulated run after a reduction, and count the backwards.
        self.set_reduces(self._reduces_each or self.mirror.has_accumulated_hooks)
        try:
            yield
        finally:
            self._root.set_reshard_after_backward(True)
            self.set_reduces(True)

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self.reshard()
        self.rank_buffers.compare()
        self._make_buffers_equal()
        return super().model_tensors()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.rank_buffers.compare()
        self._make_buffers_equal()
        with super().evaluating():
            yield

    def restore_module(self) -> None:
        super().restore_module()
        self._make_buffers_equal()

    def _make_buffers_equal(self) -> None:
        """Rank 0's buffers on every rank, where they are to be equal. Collective."""
        if self._broadcasts:
            broadcast_coalesced(self.module.buffers())

    def release(self) -> None:
        super().release()
        del self._root
