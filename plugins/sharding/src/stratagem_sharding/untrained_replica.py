"""`UntrainedReplica`: a module on every rank, set up without an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratagem import Prepared, SetupRequest
from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.exchange import StoreExchange
from stratagem_sharding.gradient_tracker import GradientTracker

__all__ = ["UntrainedReplica"]


class UntrainedReplica(Prepared):
    """A replica that starts with rank 0's values and was set up without an optimizer.

    Gradients are averaged after each backward, since your own training loop may change parameters by hand. For
    strategies that otherwise reduce gradients when their optimizers step.
    """

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request)
        broadcast_coalesced((*self.original_module.parameters(), *self.original_module.buffers()))
        self._is_syncing = True
        self._gradients: GradientTracker | None = None
        if request.collectives.world_size > 1:
            self._gradients = GradientTracker(
                request.original_module.named_parameters(),
                StoreExchange(request.collectives),
                request.device,
                completes_at_end=lambda: self._is_syncing,
            )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def release(self) -> None:
        super().release()
        if self._gradients is not None:
            self._gradients.release()
