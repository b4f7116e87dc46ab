"""What the loop calls per step under ddp_fully_sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from stratagem_fsdp import (
    GatherOrder,
    ShardMirror,
    UnitGradients,
    expect_none_everywhere,
    explaining,
    reduce_kept_gradients,
)
from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.kept_shards import KeptShards, Refill, leave_shards
from stratagem_sharding.local_step import LocalStep
from stratagem_sharding.module_snapshot import ModuleSnapshot
from stratagem_sharding.rank_buffers import RankBuffers
from stratagem_sharding.unit_dtypes import refuse_mixed_dtypes
from stratagem_sharding.whole_tensors import (
    ReadingExchange,
    copies_as_before,
    copies_whole,
    hold_whole,
    on_shards,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from stratagem import Clipping, ConfigError, Prepared, SetupRequest, place
from stratagem_sharded.blocks import blocks_in

if TYPE_CHECKING:
    from stratagem import CheckpointReader
    from stratagem_sharded.fully import DDPFullyShardedStrategy


APART = (
    "put those of one dtype into a module of their own that blocks names, as blocks=['Block'], or choose ddp"
)
"""What to do about several dtypes in one unit."""


ADVICE = "don't call the module's state_dict() within a step, copy tensors by their names, or choose ddp"
"""What to do where the step's whole parameters are gone, as torch's `state_dict` lets them go."""


class FullyShardedPrepared(Prepared):
    """A module whose parameters are gathered once per step and whose gradients are reduced into shards."""

    carries_hooks = True
    supports_inference_mode = False

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
        self._world_size = request.collectives.world_size
        self.leaves_module_sharded = True
        mesh = init_device_mesh(request.device.type, (self._world_size,))
        self._snapshot = ModuleSnapshot(request.module)
        refill: Refill | None = None
        if isinstance(request.left_shards, KeptShards):
            request.left_shards.check_mesh(mesh)
            refill = Refill(request.original_module, request.left_shards, self._world_size)
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
        self._root: FSDPModule = fully_shard(module, mesh=mesh, reshard_after_forward=False)
        self._sharded = [each for each in module.modules() if isinstance(each, FSDPModule)]
        if refill is not None:
            refill.finish()
        self._snapshot.note()
        self._is_own_loop = request.steps is None
        self._reduces_each = strategy.reduce_each_micro_batch
        self._broadcasts = (
            strategy.broadcast_buffers and request.loop.training and any(True for _ in module.buffers())
        )
        self._rank_buffers = RankBuffers(
            request.original_module, request.collectives, local=strategy.buffers == "local"
        )
        super().__init__(request, module)
        self._collectives = request.collectives
        self._micro_batch = 0
        self._shards = list(self.original_module.parameters())
        self._reduces, self._unreduced = True, False
        self._mirror = ShardMirror(self._sharded, (), self.original_module)
        ReadingExchange(request.collectives)
        hold_whole(self.original_module.parameters())
        copies_whole(self.original_module, self._snapshot, self._let_go)
        self._order = GatherOrder(
            self._sharded, self._root, self.original_module, request.collectives, "ddp_fully_sharded"
        )
        self._gradients = UnitGradients(
            self._sharded,
            [self._root],
            self.original_module,
            request.collectives,
            "ddp_fully_sharded",
            self.device,
        )
        self._steps = [LocalStep(optimizer) for optimizer in self.optimizers]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._gradients.recover()
        if torch.is_grad_enabled():
            self._rank_buffers.before_forward()
            self._make_buffers_equal()
        with self._explaining(), self._recovering():
            output = super().forward(*args, **kwargs)
        self._order.end_forward(output is None and torch.is_grad_enabled())
        if not torch.is_grad_enabled():
            self._let_go()  # no backward will
        return output

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        if not sync:
            return super().forward_backward(*args, divisor=divisor, sync=False)  # which comes back
        self._micro_batch += 1
        output = super().forward_backward(*args, divisor=divisor)
        if output is None:
            expect_none_everywhere(self._collectives, self._micro_batch, "ddp_fully_sharded")
            if self._reduces and self._unreduced:
                reduce_kept_gradients(self._root)
                self._unreduced = False
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self._mirror.settle()
        with self._explaining(), self._recovering(in_backward=True):
            super().backward(loss, **kwargs)
        self._gradients.note_backward()
        self._unreduced = not self._reduces
        if self._reduces:
            self._order.end_backward(self._shards)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        # The next micro-batch needs the same parameters: they stay whole until the step. A loop of the user's own
        # may look for gradients meanwhile, which shards have and whole parameters don't.
        self._root.set_reshard_after_backward(self._is_own_loop)
        # Hooks that look at what has been accumulated run after a reduction, and count the backwards.
        self._set_reduces(self._reduces_each or self._mirror.has_accumulated_hooks)
        try:
            yield
        finally:
            self._root.set_reshard_after_backward(True)
            self._set_reduces(True)

    @on_shards()
    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        norm = super().clip(index, clipping)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def complete_gradients(self, index: int) -> None:
        self._gradients.complete(self._parameters[index], type(self.optimizers[index]).__name__)

    def average_gradients(self, index: int) -> None:
        self._gradients.average(self._parameters[index])

    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)
        self._gradients.drop(self._parameters[index])

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        # After a forward without a backward, whole parameters would outlive the step that changes the shards.
        self._let_go()
        step = self._steps[index]
        evaluate = None if closure is None else step.seen_whole(partial(self._evaluated, closure))
        with step.stepping():
            return super().step(index, evaluate)

    def _evaluated(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._let_go()
        return loss

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._let_go()
        self._rank_buffers.compare()
        self._make_buffers_equal()
        return super().model_tensors()

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        self._let_go()
        return {**super().optimizer_tensors(), **self._rank_buffers.tensors()}

    def state(self) -> dict[str, Any]:
        self._let_go()
        return super().state()

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self._let_go()
        super().load(reader, state, model_only=model_only)
        if not model_only:
            self._rank_buffers.load(reader)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._rank_buffers.compare()
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
        self._order.release()
        self._let_go()
        self._mirror.release()
        copies_as_before(self.original_module)
        self._gradients.release()
        super().release()
        self._let_go()
        self.left_shards = leave_shards(self.original_module, self._snapshot, self._world_size)
        self._sharded.clear()
        del self._root, self._shards

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        yield from super().replicas()
        yield "which sharded blocks and parameters were used", self._order.history
        yield from self._mirror.replicas()

    def _explaining(self) -> AbstractContextManager[None]:
        return explaining(self.original_module, self._sharded, "ddp_fully_sharded", ADVICE)

    @contextmanager
    def _recovering(self, in_backward: bool = False) -> Iterator[None]:
        """Around a forward or backward: after an exception that the loop catches, the next one is as any other."""
        try:
            yield
        except Exception:
            self._order.abandon_forward()
            self._gradients.abandon(in_backward)
            raise

    def _set_reduces(self, reduces: bool) -> None:
        if reduces != self._reduces:
            self._reduces = reduces
            self._root.set_requires_gradient_sync(reduces)

    def _let_go(self) -> None:
        """Free the whole parameters where a forward left them: evaluation, or a skipped batch."""
        self._mirror.settle()
        for module in self._sharded:
            module.reshard()
