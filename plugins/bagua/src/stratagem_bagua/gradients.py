"""Gradients that all ranks average: gradient_allreduce, and bytegrad in 8 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any
from stratagem_sharding.mean_exchange import MeanExchange
from stratagem_sharding.replicated import ReplicatedPrepared
from stratagem_sharding.synchronised import SynchronisedPrepared

from stratagem import SetupRequest
from stratagem.errors import GradientError


class GradientPrepared(SynchronisedPrepared, ReplicatedPrepared):
    """A replica whose gradients are averaged after each backward that is to be synchronised.

    ByteGrad (Gan et al., Bagua, https://arxiv.org/abs/2107.01499, section 3): each rank gets a chunk of every rank's
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
        self.averages_raw_backwards = average
        self.world_size = request.collectives.world_size
        self._summed: dict[torch.Tensor, torch.Tensor] = {}
        broadcast_coalesced((*self.original_module.parameters(), *self.original_module.buffers()))
        self.track(request)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        for parameter, gradient in self._summed.items():
            if parameter.grad is gradient and gradient.any():
                raise GradientError(
                    "bagua with average=False sums gradients over the ranks after each backward, and those of this "
                    "step are summed already: put all backwards of a step but the last one into runtime.no_sync()"
                )
        self._summed.clear()
        super().backward(loss, **kwargs)

    def reduce(self) -> None:
        self.reduce_of(self.synchronised())

    def reduce_of(self, parameters: Iterable[torch.Tensor]) -> None:
        """Make the gradients of `parameters`, the same on every rank, those of all ranks. Collective."""
        if self.world_size > 1:
            parameters = list(parameters)
            reduce_gradients(parameters, self.device, self._in_bytes, self._average)
            self.note_reduced(parameters)
            if not self._average:
                self._summed = {p: p.grad for p in parameters if p.grad is not None}

    def averaged_ranks(self) -> int:
        return super().averaged_ranks() if self._average else 1

    def complete_gradients(self, index: int) -> None:
        tracker = self.tracker
        if tracker is not None and not self._average:
            for parameter in self.stepped_parameters(index):
                if parameter.grad is not None and tracker.is_local(parameter):
                    name = type(self.optimizers[index]).__name__
                    raise GradientError(
                        f"{name} steps gradients that aren't summed over the ranks, as bagua does with average=False "
                        "in runtime.backward: call that, the last time in a step outside of runtime.no_sync()"
                    )
        super().complete_gradients(index)


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
