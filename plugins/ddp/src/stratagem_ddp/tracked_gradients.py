"""`TrackedGradients`: base of replicas whose gradients a `GradientTracker` tracks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.gradient_tracker import GradientTracker

from stratagem import Prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratagem_sharding.rank_buffers import RankBuffers
    from torch.optim import Optimizer


class TrackedGradients(Prepared):
    """Base of replicas whose gradients are averaged, by DistributedDataParallel or by the strategy itself.

    Subclasses set `_gradients` (None if nothing is averaged) and `_rank_buffers`.
    """

    _gradients: GradientTracker | None
    _rank_buffers: RankBuffers

    def complete_gradients(self, index: int) -> None:
        if self._gradients is not None:
            self._gradients.complete(self._parameters[index], self.optimizer_name(index))

    def average_gradients(self, index: int) -> None:
        if self._gradients is not None:
            self._gradients.average(self._parameters[index])

    def step_late_optimizer(self, optimizer: Optimizer) -> None:
        if self._gradients is None or self.precision.scales_loss:
            super().step_late_optimizer(optimizer)
        else:
            self._gradients.complete_late(optimizer)

    def gradient_replicas(self, index: int) -> Iterator[tuple[str, Any]]:
        if self._gradients is not None:
            yield from self._gradients.replicas(self._parameters[index])

    def replicas(self) -> Iterator[tuple[str, Any]]:
        yield from super().replicas()
        if self._gradients is not None:
            yield "what your code made of averaged gradients", self._gradients.changes

    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)
        if self._gradients is not None and self._gradients.has_local:
            self._gradients.forget(self._parameters[index])

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        return {**super().optimizer_tensors(), **self._rank_buffers.tensors()}

    def release(self) -> None:
        super().release()
        if self._gradients is not None:
            self._gradients.release()

    def _note_average(self) -> None:
        if self._gradients is not None:
            self._gradients.note_average(self.original_module.parameters())
