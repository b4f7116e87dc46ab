"""Replicas without DistributedDataParallel: those that aren't trained, and those whose module steps by hand."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any

from stratagem import Prepared, SetupRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReplicaPrepared(Prepared):
    """A replica that starts as rank 0's and isn't trained by DistributedDataParallel."""

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request)
        # As DistributedDataParallel does when it is made.
        broadcast_coalesced((*self.module.parameters(), *self.module.buffers()))


class ManualDDPPrepared(ReplicaPrepared):
    """Averages gradients after each backward that the module runs itself.

    DistributedDataParallel expects one backward per forward, and the forward before it; a module
    that steps several optimizers, as a GAN does, has neither. Averaging a gradient again leaves what
    is already equal on all ranks as it is, so gradients may accumulate over backwards.

    Args:
        request: as everywhere.
        dtype: that gradients are averaged in; None for their own.
    """

    def __init__(self, request: SetupRequest, dtype: torch.dtype | None = None) -> None:
        super().__init__(request)
        self._dtype = dtype
        self._syncing = True
        self._touched: set[torch.nn.Parameter] = set()
        # Those that are frozen now, too: they may be unfrozen later.
        self._trainable = [p for p in self.module.parameters() if p.is_floating_point() or p.is_complex()]
        self._handles = [on_gradient(parameter, self._touched.add) for parameter in self._trainable]

    def manual_step(self, *args: Any) -> Any:
        broadcast_coalesced(self.module.buffers())
        return self.forward(*args)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        if self._syncing:
            self._average_gradients()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._syncing = False
        try:
            yield
        finally:
            self._syncing = True

    def release(self) -> None:
        super().release()
        for handle in self._handles:
            handle.remove()

    def _average_gradients(self) -> None:
        touched = [parameter in self._touched for parameter in self._trainable]
        self._touched.clear()
        for flat in flattened_buckets(gradients_of_any(self._trainable, touched, self.device)):
            if self._dtype is None:
                dist.all_reduce(flat)
                flat.div_(dist.get_world_size())
            else:
                # Divided first: a sum overflows earlier than a mean.
                sent = flat.to(self._dtype).div_(dist.get_world_size())
                dist.all_reduce(sent)
                flat.copy_(sent)


def on_gradient(parameter: torch.nn.Parameter, function: Callable[[torch.nn.Parameter], object]) -> Any:
    """Call `function` whenever `parameter`, frozen or not, has got a gradient; returns the hook's handle."""
    flag = parameter.requires_grad
    parameter.requires_grad_(True)  # torch takes no hook without
    handle = parameter.register_post_accumulate_grad_hook(function)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(flag)
    return handle
