"""What the loop calls per step under ddp_fully_sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from stratagem import Clipping, ConfigError, Prepared, SetupRequest, place
from stratagem.collectives.flat import send_from_first
from stratagem_sharded.blocks import blocks_in

if TYPE_CHECKING:
    from stratagem.checkpoint.base import CheckpointReader
    from stratagem_sharded.fully import DDPFullyShardedStrategy


class FullyShardedPrepared(Prepared):
    """A module whose parameters are gathered once per step and whose gradients are reduced into shards."""

    def __init__(self, request: SetupRequest, strategy: DDPFullyShardedStrategy) -> None:
        for name, parameter in request.plain.named_parameters():
            if not parameter.dim():
                raise ConfigError(
                    f"parameter {name!r} has no dimension along which ddp_fully_sharded could share it out: give it "
                    "one, as in torch.ones(1), or choose fsdp or ddp_sharded"
                )
        module = place(request)
        # Each rank keeps a piece of what it has: all must have what rank 0 has.
        send_from_first((*module.parameters(), *module.buffers()))
        mesh = init_device_mesh(request.device.type, (request.collectives.world_size,))
        for block in blocks_in(request.plain, strategy.blocks):
            fully_shard(block, mesh=mesh, reshard_after_forward=False)
        self._root: FSDPModule = fully_shard(module, mesh=mesh, reshard_after_forward=False)
        self._sharded = [each for each in module.modules() if isinstance(each, FSDPModule)]
        self._reduces_each = strategy.reduce_each_micro_batch
        self._broadcasts = (
            strategy.broadcast_buffers and request.training and any(True for _ in module.buffers())
        )
        super().__init__(request, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._broadcasts and torch.is_grad_enabled():
            send_from_first(self.module.buffers())
        return super().forward(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        # The next micro-batch needs the same parameters: they stay whole until the step.
        self._root.set_reshard_after_backward(False)
        if not self._reduces_each:
            self._root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._root.set_reshard_after_backward(True)
            self._root.set_requires_gradient_sync(True)

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        norm = super().clip(index, clipping)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        # After a forward without a backward, whole parameters would outlive the step that changes the shards.
        self._let_go()
        return super().step(index, closure)

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._let_go()
        if self._broadcasts:
            send_from_first(self.module.buffers())
        return super().model_tensors()

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        self._let_go()
        return super().optimizer_tensors()

    def state(self) -> dict[str, Any]:
        self._let_go()
        return super().state()

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self._let_go()
        super().load(reader, state, model_only=model_only)

    def release(self) -> None:
        super().release()
        self._sharded.clear()
        del self._root

    def _let_go(self) -> None:
        """Free the whole parameters where a forward left them: evaluation, or a skipped batch."""
        for module in self._sharded:
            module.reshard()
