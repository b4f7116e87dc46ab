"""Gradients that all ranks average: gradient_allreduce, and bytegrad in 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any
from stratagem_sharding.mean_exchange import MeanExchange
from stratagem_sharding.replicated import ReplicatedPrepared

from stratagem import SetupRequest
from stratagem.sdk.loops import loss_of


class GradientPrepared(ReplicatedPrepared):
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
        self._world_size = request.collectives.world_size
        self._syncing = True
        broadcast_coalesced((*self.original_module.parameters(), *self.original_module.buffers()))

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if self._syncing and sync and loss_of(output) is None:
            self._reduce()  # other ranks may have one
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        if self._syncing:
            self._reduce()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def _reduce(self) -> None:
        if self._world_size == 1:
            return
        parameters = [p for p in self.original_module.parameters() if p.is_floating_point() or p.is_complex()]
        has_one = [parameter.grad is not None for parameter in parameters]
        gradients = gradients_of_any(parameters, has_one, self.device)
        for flat in flattened_buckets([torch.view_as_real(g) if g.is_complex() else g for g in gradients]):
            if self._in_bytes:
                given = flat.clone() if flat.dtype == torch.float64 else flat.to(torch.float32, copy=True)
                flat.copy_(MeanExchange(given, dist.group.WORLD, "int8").result())
                if not self._average:
                    flat.mul_(self._world_size)
                continue
            if self._average:
                flat.div_(self._world_size)  # first: a sum overflows earlier than a mean
            dist.all_reduce(flat)
