"""Replicas without DistributedDataParallel: for runs without training, and for manual optimization."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any
from stratagem_sharding.exchange import StoreExchange
from stratagem_sharding.gradient_tracker import GradientTracker
from stratagem_sharding.rank_buffers import RankBuffers

from stratagem import SetupRequest
from stratagem_ddp.tracked_gradients import TrackedGradients

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from stratagem import CheckpointReader


class ReplicaPrepared(TrackedGradients):
    """A replica that starts with rank 0's values and doesn't use DistributedDataParallel.

    Gradients are averaged after each backward, since your own training loop may step an optimizer that it created
    after `setup`, or change parameters itself.

    Args:
        request: as the `setup` hook received it.
        local_buffers: whether each rank keeps its own buffers.
    """

    def __init__(self, request: SetupRequest, *, local_buffers: bool = False) -> None:
        super().__init__(request)
        self._rank_buffers = RankBuffers(request.original_module, request.collectives, local=local_buffers)
        # As DistributedDataParallel does in its constructor.
        broadcast_coalesced((*self.module.parameters(), *self.module.buffers()))
        self._gradients: GradientTracker | None = None
        if request.collectives.world_size > 1:
            named = request.original_module.named_parameters()
            exchange = StoreExchange(request.collectives)
            self._gradients = GradientTracker(
                named, exchange, request.device, completes_at_end=self._completes_at_end
            )

    def _completes_at_end(self) -> bool:
        """Whether gradients are averaged at the end of a backward that this object didn't start."""
        return True

    def step_late_optimizer(self, optimizer: Optimizer) -> None:
        super().step_late_optimizer(optimizer)
        self._make_buffers_equal()

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._rank_buffers.compare()
        return super().model_tensors()

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        if not model_only:
            self._rank_buffers.load(reader)

    def _make_buffers_equal(self) -> None:
        """Give every rank rank 0's buffers, unless each rank keeps its own. Collective."""
        if not self._rank_buffers.are_local:
            self._rank_buffers.before_forward()
            broadcast_coalesced(self.module.buffers())


class ManualDDPPrepared(ReplicaPrepared):
    """Averages gradients after each backward that the module runs itself.

    DistributedDataParallel expects each forward to be followed by one backward. A module that steps several
    optimizers, such as a GAN, doesn't do that. Averaging equal gradients again doesn't change them, so gradients
    may accumulate over backwards.

    Args:
        request: as the `setup` hook received it.
        dtype: in which gradients are averaged; None for their own dtype.
        local_buffers: whether each rank keeps its own buffers.
    """

    def __init__(
        self, request: SetupRequest, dtype: torch.dtype | None = None, *, local_buffers: bool = False
    ) -> None:
        self._syncing, self._in_backward = True, False
        super().__init__(request, local_buffers=local_buffers)
        self._dtype = dtype
        # Including frozen ones, which may be unfrozen later.
        self._trainable = [p for p in self.module.parameters() if p.is_floating_point() or p.is_complex()]

    def manual_step(self, *args: Any) -> Any:
        self._make_buffers_equal()
        return self.forward(*args)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if self._gradients is not None:
            self._gradients.before_backward()
        self._in_backward = True
        try:
            super().backward(loss, **kwargs)
        finally:
            self._in_backward = False
        if self._syncing:
            self._average_gradients()

    def _completes_at_end(self) -> bool:
        return self._syncing and not self._in_backward

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._syncing = False
        try:
            yield
        finally:
            self._syncing = True

    def _average_gradients(self) -> None:
        if self._gradients is None:
            return
        self._gradients.refuse_changed()
        touched = [self._gradients.is_local(parameter) for parameter in self._trainable]
        for flat in flattened_buckets(gradients_of_any(self._trainable, touched, self.device)):
            if self._dtype is None:
                dist.all_reduce(flat)
                flat.div_(dist.get_world_size())
            else:
                # Divide first: a float16 sum overflows earlier than a mean.
                sent = flat.to(self._dtype).div_(dist.get_world_size())
                dist.all_reduce(sent)
                flat.copy_(sent)
        self._gradients.note_average(self._trainable)
