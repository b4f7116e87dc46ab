"""Steps that return None, on all ranks or on some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

from stratagem.errors import DataError
from stratagem_testing.checks import check
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import expect_parity, expect_parity_or_refusal


@dataclass(frozen=True)
class _SomeBatches(Recipe):
    """Windows of 4 micro-batches, of which the last, the first, all, and all but the second have no loss."""

    steps: int | None = 8
    accumulate: int = 4
    global_batch: int = 32

    def skips(self, index: int) -> bool:
        return index % 16 in {3, 4, 8, 9, 10, 11, 12, 14, 15}

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        # Momentum and weight decay change a parameter with a gradient of zeros, but not one without a gradient.
        return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)]


@dataclass(frozen=True)
class _EveryThird(_SomeBatches):
    accumulate: int = 1
    global_batch: int = 8

    def skips(self, index: int) -> bool:
        return index % 3 == 1


@check
def check_missing_losses(subject: StrategySubject) -> None:
    """If all ranks return None, a micro-batch adds nothing. A step of only such micro-batches changes nothing."""
    expect_parity(subject, _SomeBatches(), _EveryThird())


@dataclass(frozen=True)
class _SomeRanks(_SomeBatches):
    """About half of the samples have no loss. A rank with few samples may have none with a loss."""

    steps: int | None = 20
    accumulate: int = 2
    global_batch: int = 8

    def dataset(self) -> Dataset[Any]:
        counts = torch.rand(self.samples, generator=torch.Generator().manual_seed(4)) < 0.5
        whole = super().dataset()
        assert isinstance(whole, TensorDataset)
        return TensorDataset(*whole.tensors, counts)

    def skips(self, index: int) -> bool:
        return False

    def loss(self, net: nn.Module, batch: Any) -> Tensor | None:
        x, y, counts = batch
        if not counts.any():
            return None
        losses = F.cross_entropy(net(x), y, reduction="none")
        loss: Tensor = (losses * counts).mean()
        return loss


@check(world_sizes=(2, 4))
def check_some_ranks_without_loss(subject: StrategySubject) -> None:
    """A rank that returns None counts as one with a loss of 0; or the run ends with a DataError."""
    expect_parity_or_refusal(subject, _SomeRanks(), DataError)
