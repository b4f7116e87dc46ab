"""`SynchronisedPrepared`: replicas that average gradients over all ranks after a backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stratagem import Prepared, SetupRequest
from stratagem.sdk.loops import loss_of
from stratagem_sharding.exchange import StoreExchange
from stratagem_sharding.gradient_tracker import GradientTracker

__all__ = ["SynchronisedPrepared"]


class SynchronisedPrepared(Prepared):
    """Calls `reduce` after each backward that is synchronised. Mix it in before another `Prepared`.

    Gradients from another backward, such as `loss.backward()`, are averaged before the step. Gradients that the
    user's code assigned or changed are refused if they differ between ranks. `GradientTracker` does both.
    """

    is_syncing = True
    """Whether the next backward is synchronised. False within `no_sync`."""
    _in_backward = False
    averages_raw_backwards = False
    """Whether gradients are averaged at the end of a backward that isn't this object's, such as `loss.backward()`."""
    tracker: GradientTracker | None = None
    """None with a single rank."""

    def track(self, request: SetupRequest) -> None:
        """Start to track which gradients are local to this rank. Collective; call it at the constructor's end."""
        if request.collectives.world_size > 1:
            named, exchange = request.original_module.named_parameters(), StoreExchange(request.collectives)
            self.tracker = GradientTracker(
                named, exchange, request.device, completes_at_end=self._completes_at_end
            )

    def _completes_at_end(self) -> bool:
        return self.averages_raw_backwards and self.is_syncing and not self._in_backward

    def reduce(self) -> None:
        """Average gradients over all ranks, and call `note_reduced`. Collective."""
        raise NotImplementedError

    def synchronised(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients must be averaged over all ranks before the next step."""
        return list(self.original_module.parameters())

    def note_reduced(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that the gradients of `parameters` are averaged over all ranks."""
        if self.tracker is not None:
            self.tracker.note_average(parameters)

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if self.is_syncing and sync and loss_of(output) is None:
            self.reduce()  # other ranks may have a loss
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.add(self.original_module.named_parameters())
        self._in_backward = True
        try:
            super().backward(loss, **kwargs)
        finally:
            self._in_backward = False
        if self.is_syncing:
            if self.tracker is not None:
                self.tracker.refuse_changed()
            self.reduce()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.is_syncing = self.is_syncing, False
        try:
            yield
        finally:
            self.is_syncing = before

    def complete_gradients(self, index: int) -> None:
        if self.tracker is not None:
            self.tracker.complete(self.stepped_parameters(index), type(self.optimizers[index]).__name__)

    def average_gradients(self, index: int) -> None:
        if self.tracker is not None:
            self.tracker.average(self.stepped_parameters(index))

    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)
        if self.tracker is not None and self.tracker.has_local:
            self.tracker.forget(self._parameters[index])

    def gradient_replicas(self, index: int) -> Iterator[tuple[str, Any]]:
        if self.tracker is not None:
            yield from self.tracker.replicas(self.stepped_parameters(index))

    def stepped_parameters(self, index: int) -> list[nn.Parameter]:
        """Return the parameters of optimizer `index` whose gradients must be averaged over all ranks."""
        local = {id(p) for p in self.original_module.parameters()} - {id(p) for p in self.synchronised()}
        return [parameter for parameter in self._parameters[index] if id(parameter) not in local]

    def release(self) -> None:
        super().release()
        if self.tracker is not None:
            self.tracker.release()
