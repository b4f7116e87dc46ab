"""A right strategy, in as few lines as it takes: the base of the wrong ones."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import gradients_of_any
from stratagem_sharding.replicated import ReplicatedPrepared

from stratagem import Capabilities, ParallelStrategy, ProcessGroupCollectives, hookimpl
from stratagem.errors import GradientError
from stratagem.sdk.loops import loss_of

FEATURES = {
    "several_optimizers",
    "manual_backward",
    "closure",
    "optimizer_hooks",
    "changes_between_steps",
    "norm_clipping",
    "value_clipping",
    "resharding",
    "sparse_gradients",
    "whole_optimizer",
}


class AveragedPrepared(ReplicatedPrepared):
    """A replica per rank; gradients are averaged after the backward of a window's last micro-batch."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.request, self.syncing, self.world_size = request, True, request.collectives.world_size
        self.accumulated: dict[Any, Any] = {}
        """Parameter → the gradient that the last backward left."""
        self.start()

    def start(self) -> None:
        for tensor in (*self.original_module.parameters(), *self.original_module.buffers()):
            dist.broadcast(tensor.detach(), 0)

    @contextmanager
    def no_sync(self) -> Any:
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if self.syncing and sync and loss_of(output) is None:
            self.average()
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self.refuse_assigned()
        super().backward(loss, **kwargs)
        if self.syncing:
            self.average()
        self.accumulated = {parameter: parameter.grad for parameter in self.averaged()}

    def refuse_assigned(self) -> None:
        """Refuse gradients that a loop assigned rank by rank, before a backward adds to them."""
        for parameter in self.averaged():
            grad = parameter.grad
            if grad is None or grad is self.accumulated.get(parameter):
                continue
            first = grad.clone()
            dist.broadcast(first, 0)
            if self.request.collectives.all_reduce(torch.tensor(float(not first.equal(grad))), "max"):
                raise GradientError("a gradient was assigned before a backward, and differs between ranks")

    def complete_gradients(self, index: int) -> None:
        self.average()  # what is averaged already stays as it is

    def average(self) -> None:
        averaged = list(self.averaged())
        has_one = [parameter.grad is not None for parameter in averaged]
        for grad in gradients_of_any(averaged, has_one, self.device):
            dist.all_reduce(grad)
            grad /= self.world_size

    def averaged(self) -> Any:
        return self.original_module.parameters()


class Averaging(ParallelStrategy):
    """Averages gradients, parameter by parameter."""

    start_method = "fork"
    prepared = AveragedPrepared
    collectives_class = ProcessGroupCollectives
    capabilities = Capabilities(processes="per-device", start_methods=("fork",), features=frozenset(FEATURES))

    def open_collectives(self, request: Any) -> Any:
        backend = request.accelerator.backend
        return self.collectives_class(request.environment, request.device, backend, timedelta(seconds=20))

    @hookimpl
    def setup(self, request: Any) -> Any:
        return self.prepared(request)


class Twins(Averaging):
    """Ranks 0 and 1 read the same batches, and so do 2 and 3: as ranks do that share one copy of a model."""

    def open_collectives(self, request: Any) -> Any:
        collectives = super().open_collectives(request)
        ranks = range(collectives.world_size)
        for first in (0, 1):
            members = [rank for rank in ranks if rank % 2 == first]
            group = dist.new_group(members) if members else None
            if collectives.rank in members:
                collectives.share_data_among(group)
        return collectives


def pairs(world_size: int) -> int:
    return max(1, world_size // 2)
