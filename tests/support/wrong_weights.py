"""Strategies that are right for means, and divide sums of losses by a wrong weight."""

from __future__ import annotations

from typing import Any

import torch
from averaging import AveragedPrepared
from planting import caught_by

from stratagem.strategies.loss_weights import LossWeights

OVER_ALL = "weighted_losses"
BY_HAND = "weighted_backwards"


class _Prepared(AveragedPrepared):
    weights: type[LossWeights]

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.loss_weights = self.weights(self, request.collectives.data)


class _OfRank(LossWeights):
    def _reduce(self) -> None:
        self._reduced = self._own * self._data.world_size
        self._own = torch.zeros_like(self._own)


@caught_by(OVER_ALL, "away from that of one process, more than 1e-06 (tried with Weighted(")
class DividesByOwnWeight(_Prepared):
    """The mean over ranks of each rank's mean."""

    weights = _OfRank


class _OfMicroBatch(LossWeights):
    def add(self, weight: Any, has_loss: bool = True) -> float:
        unit = super().add(weight, has_loss)
        if weight is None:
            return unit
        total = self._data.all_reduce(torch.as_tensor(weight, dtype=torch.float64), "sum")
        return unit if total == 0 else float(unit / total)

    def _reduce(self) -> None:
        micro_batches = self._own.clamp(max=0) + 1
        self._reduced, self._own = micro_batches, torch.zeros_like(self._own)


@caught_by(BY_HAND, "the trained net's output")
class DividesByMicroBatch(_Prepared):
    """The sum over micro-batches of each one's mean over all ranks."""

    weights = _OfMicroBatch


class _OfFirstRank(LossWeights):
    def _reduce(self) -> None:
        first = self._data.broadcast(self._own)
        self._reduced, self._own = first * self._data.world_size, torch.zeros_like(self._own)


@caught_by(OVER_ALL, "away from that of one process, more than 1e-06 (tried with Weighted(")
class DividesByFirstRanksWeight(_Prepared):
    """As if every rank had what rank 0 has."""

    weights = _OfFirstRank


class _Twice(LossWeights):
    def complete(self) -> None:
        super().complete()
        for gradients in self._gradients():
            for gradient in gradients:
                gradient /= self._total.max().clamp(min=1)


@caught_by(BY_HAND, "the trained net's output")
class DividesTwice(_Prepared):
    weights = _Twice


class _LastOfWindow(LossWeights):
    def add(self, weight: Any, has_loss: bool = True) -> float:
        self._own.zero_()
        return super().add(weight, has_loss)


@caught_by(BY_HAND, "the trained net's output")
class ForgetsEarlierMicroBatches(_Prepared):
    """Divides the sum of a window by the weight of its last micro-batch."""

    weights = _LastOfWindow


class _Once(LossWeights):
    def mean(self, loss: Any, index: int) -> Any:
        return loss


@caught_by(OVER_ALL, "(tried with ByLBFGS(")
class GivesOptimizersSums(_Prepared):
    """An optimizer that evaluates the loss gets the gradient of a mean and the value of a sum."""

    weights = _Once
