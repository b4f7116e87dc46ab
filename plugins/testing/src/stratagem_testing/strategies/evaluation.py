"""Validation, test and prediction over several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import RecipeModule

COUNT = 37  # nothing divides it


@dataclass(frozen=True)
class _Numbered(Recipe):
    samples: int = COUNT

    def dataset(self) -> Dataset[Any]:
        x, y = super().dataset()[:]
        return TensorDataset(x, y, torch.arange(1, COUNT + 1))


class _Evaluated(RecipeModule):
    """Counts samples, and sums their numbers and the squares of these."""

    def __init__(self) -> None:
        super().__init__(_Numbered(), 4)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        numbers = batch[2].double()
        self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))
        self.log("count", float(len(numbers)), reduce_fx="sum")
        self.log("numbers", numbers.sum(), reduce_fx="sum")
        self.log("squares", (numbers**2).sum(), reduce_fx="sum")
        self.log("last", numbers.max(), reduce_fx="max")
        self.log("first", numbers.min(), reduce_fx="min")

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"scores": self.net(batch[0]), "number": batch[2]}

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.recipe.dataset(), self.batch_size)

    test_dataloader = predict_dataloader = val_dataloader


@check
def check_evaluation_once(subject: StrategySubject) -> None:
    """Validate and test count every sample exactly once, and give the metrics of one process."""
    numbers = range(1, COUNT + 1)
    recipe = _Numbered()
    x, y, _ = recipe.dataset()[:]
    with torch.no_grad():
        loss = float(F.cross_entropy(recipe.net()(x), y))
    expected = {
        "count": COUNT,
        "numbers": sum(numbers),
        "squares": sum(number**2 for number in numbers),
        "first": 1,
        "last": COUNT,
        "loss": loss,
    }
    for rank, both in enumerate(subject.run(_evaluate)):
        for stage, metrics in zip(("validate", "test"), both):
            for name, value in expected.items():
                expect(
                    abs(metrics[name] - value) <= subject.tolerance() * max(1.0, abs(value)),
                    f"{stage} on rank {rank} has {name} = {metrics[name]:g}, and one process {value:g}",
                )


def _evaluate(subject: StrategySubject) -> list[dict[str, float]]:
    trainer = subject.trainer()
    return [trainer.validate(_Evaluated()), trainer.test(_Evaluated())]


@check
def check_predict_in_order(subject: StrategySubject) -> None:
    """Predict returns every sample's prediction exactly once, in the order of the data."""
    recipe = _Numbered()
    with torch.no_grad():
        expected = recipe.net()(recipe.dataset()[:][0])
    batches = subject.run(_predict)[0]
    numbers = torch.cat([batch["number"] for batch in batches]).tolist()
    expect(
        numbers == list(range(1, COUNT + 1)),
        f"{len(numbers)} predictions for {COUNT} samples, in the order {numbers[:12]} …",
    )
    scores = torch.cat([batch["scores"] for batch in batches])
    apart = float((scores - expected).abs().max())
    expect(apart <= subject.tolerance(), f"predictions are {apart:.2g} away from those of one process")


def _predict(subject: StrategySubject) -> list[dict[str, Tensor]]:
    return subject.trainer().predict(_Evaluated())
