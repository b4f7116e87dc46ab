"""Gradients that all ranks average: gradient_allreduce, and bytegrad in 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any
from stratagem_sharding.mean_exchange import MeanExchange
from stratagem_sharding.replicated import ReplicatedPrepared

from stratagem import Prepared, SetupRequest
from stratagem.sdk.loops import loss_of


class SynchronisedPrepared(Prepared):
    """Calls `reduce` after each backward that is to be synchronised. Mix it in before another `Prepared`."""

    _syncing = True

    def reduce(self) -> None:
        """Make gradients those of all ranks. Collective."""
        raise NotImplementedError

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if self._syncing and sync and loss_of(output) is None:
            self.reduce()  # other ranks may have one
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        if self._syncing:
            self.reduce()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before


class GradientPrepared(SynchronisedPrepared, ReplicatedPrepared):
    """A replica whose gradients are averaged after each backward that is to be synchronised.

    ByteGrad (Gan et al., Bagua, https://arxiv.org/abs/2107.01499, section 3): each rank gets a chunk of everybody's
    gradients in 8 bits, averages it in float32, and sends the chunk's mean in 8 bits to all. Averaging a gradient
    again leaves what is equal on all ranks nearly as it is, so that gradients may accumulate over backwards.

    Args:
        request: as everywhere. Collective.
        in_bytes: send 8 bits for each number, with a scale for each 256.
        average: the mean over ranks; their sum when False.
    """

    def __init__(self, request: SetupRequest, in_bytes: bool, average: bool) -> None:
        super().__init__(request)
        self._in_bytes, self._average = in_bytes, average
        self.world_size = request.collectives.world_size
        broadcast_coalesced((*self.original_module.parameters(), *self.original_module.buffers()))

    def reduce(self) -> None:
        self.reduce_of(self.original_module.parameters())

    def reduce_of(self, parameters: Iterable[torch.Tensor]) -> None:
        """Make the gradients of `parameters`, the same on every rank, those of all ranks. Collective."""
        if self.world_size > 1:
            reduce_gradients(parameters, self.device, self._in_bytes, self._average)


def reduce_gradients(
    parameters: Iterable[torch.Tensor], device: torch.device, in_bytes: bool = False, average: bool = True
) -> None:
    """Make gradients those of all ranks. Collective.

    Args:
        parameters: the same on every rank, any of which may be without a gradient.
        device: of the message in which ranks tell one another who has some.
        in_bytes: send 8 bits for each number, with a scale for each 256.
        average: the mean over ranks; their sum when False.
    """
    world_size = dist.get_world_size()
    for flat in flattened_buckets(map(as_real, any_gradients(parameters, device))):
        if in_bytes:
            given = flat.clone() if flat.dtype == torch.float64 else flat.to(torch.float32, copy=True)
            flat.copy_(MeanExchange(given, dist.group.WORLD, "int8").result())
            if not average:
                flat.mul_(world_size)
            continue
        if average:
            flat.div_(world_size)  # first: a sum overflows earlier than a mean
        dist.all_reduce(flat)


def any_gradients(parameters: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the gradients of those parameters that have one on some rank. Collective."""
    able = [p for p in parameters if p.is_floating_point() or p.is_complex()]
    return gradients_of_any(able, [parameter.grad is not None for parameter in able], device)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a complex tensor as pairs of real numbers, and others as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
