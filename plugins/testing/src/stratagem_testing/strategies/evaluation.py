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
from stratagem_testing.trained import RecipeModule, naming

COUNT = 33  # on 2 and on 4 ranks, one rank has a batch more than the others
FEW = 3  # one of 4 ranks has no sample


@dataclass(frozen=True)
class _Numbered(Recipe):
    samples: int = COUNT

    def dataset(self) -> Dataset[Any]:
        x, y = super().dataset()[:]
        return TensorDataset(x, y, torch.arange(1, self.samples + 1))


class _Evaluated(RecipeModule):
    """Logs the number of samples, the sum of their indices, and the sum of the squares of these."""

    def __init__(self, samples: int = COUNT, batch_size: int = 4) -> None:
        super().__init__(_Numbered(samples=samples), batch_size)

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
    """Validate and test use every sample exactly once, and return the metrics of one process."""
    by_rank = subject.run(_evaluate)
    for index, (stage, samples) in enumerate((("validate", COUNT), ("test", COUNT), ("validate", FEW))):
        with naming(f"{samples} samples"):
            _expect_metrics(subject, stage, [metrics[index] for metrics in by_rank], _expected(samples))


def _expected(samples: int) -> dict[str, float]:
    recipe, numbers = _Numbered(samples=samples), range(1, samples + 1)
    x, y, _ = recipe.dataset()[:]
    with torch.no_grad():
        loss = float(F.cross_entropy(recipe.net()(x), y))
    squares = sum(number**2 for number in numbers)
    return {
        "count": samples,
        "numbers": sum(numbers),
        "squares": squares,
        "first": 1,
        "last": samples,
        "loss": loss,
    }


def _expect_metrics(
    subject: StrategySubject, stage: str, by_rank: list[dict[str, float]], expected: dict[str, float]
) -> None:
    for rank, metrics in enumerate(by_rank):
        for name, value in expected.items():
            expect(
                abs(metrics[name] - value) <= subject.tolerance() * max(1.0, abs(value)),
                f"{stage} on rank {rank} has {name} = {metrics[name]:g}, but one process {value:g}",
            )


def _evaluate(subject: StrategySubject) -> list[dict[str, float]]:
    trainer = subject.trainer()
    return [*trainer.validate(_Evaluated()), *trainer.test(_Evaluated()), *trainer.validate(_Evaluated(FEW))]


class _InHalves(_Evaluated):
    """Logs one value of 255, and then ones. In a bfloat16 sum, the ones would be lost."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        value = torch.where(batch[2] == 1, 255.0, 1.0).bfloat16().squeeze()
        self.log("sum", value, reduce_fx="sum")
        self.log("mean", value)
        self.log("max", value, reduce_fx="max")


@check
def check_metrics_in_bf16(subject: StrategySubject) -> None:
    """Metrics logged in bfloat16 are reduced over batches and ranks without loss of precision."""
    expected = {"sum": 254.0 + COUNT, "mean": 254.0 / COUNT + 1, "max": 255.0}
    _expect_metrics(subject, "validate", subject.run(_evaluate_halves), expected)


def _evaluate_halves(subject: StrategySubject) -> dict[str, float]:
    return subject.trainer().validate(_InHalves(batch_size=1))[0]


@check
def check_predict_in_order(subject: StrategySubject) -> None:
    """Predict returns each sample's prediction exactly once, in the order of the data."""
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
