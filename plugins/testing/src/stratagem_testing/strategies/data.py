"""Batches of any structure, and numbers of samples that don't divide evenly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from stratagem_trainer.callbacks.base import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import RecipeModule, expect_parity, naming, train

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer


class _Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class _Record:
    pair: _Pair
    note: str


def _nest(samples: list[Any]) -> dict[str, Any]:
    x, y = torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])
    return {"in": [_Record(_Pair(x, y), "kept"), (x[:, :1], None)], "names": [f"{len(samples)} samples"]}


@dataclass(frozen=True)
class _Nested(Recipe):
    steps: int | None = 6
    collate: Callable[[list[Any]], Any] = _nest

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        record, (first, nothing) = batch["in"]
        kinds = (type(batch), type(record), type(record.pair), type(batch["names"][0]), record.note, nothing)
        expect(kinds == (dict, _Record, _Pair, str, "kept", None), f"a nested batch arrived as {kinds}")
        expect(
            bool((first[:, 0] == record.pair.x[:, 0]).all()), "parts of a nested batch don't belong together"
        )
        return F.cross_entropy(net(record.pair.x), record.pair.y)

    def predict(self, net: nn.Module, batch: Any) -> Tensor:
        predicted: Tensor = net(batch["in"][0].pair.x)
        return predicted


@check
def check_nested_batches(subject: StrategySubject) -> None:
    """Dicts, lists, named tuples and dataclasses of tensors and other values arrive as they were made."""
    expect_parity(subject, _Nested())


@check
def check_uneven_samples(subject: StrategySubject) -> None:
    """If the number of samples isn't divisible by ranks and batch size, training has one process's results."""
    expect_parity(subject, Recipe(samples=45, epochs=2, steps=None))


@dataclass(frozen=True)
class _Numbered(Recipe):
    """A recipe whose batches have the indices of their samples."""

    samples: int = 48
    epochs: int | None = 2
    steps: int | None = None

    def dataset(self) -> Dataset[Any]:
        x, y = super().dataset()[:]
        return TensorDataset(x, y, torch.arange(self.samples))


@dataclass
class Seen(Callback):
    """Records the indices of each epoch's samples."""

    epochs: list[list[int]] = field(default_factory=list)

    def on_train_epoch_start(self, trainer: Trainer, module: Module) -> None:
        self.epochs.append([])

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        if not self.epochs:
            self.epochs.append([])
        self.epochs[-1] += batch[2].tolist()


@check
def check_every_sample_once(subject: StrategySubject) -> None:
    """In each epoch, the ranks together see every sample exactly once, in a new order."""
    by_rank = subject.run(_epochs_seen)
    copies = subject.processes() // subject.shares()
    orders = []
    for epoch in range(2):
        seen = [number for epochs in by_rank for number in epochs[epoch]]
        expected = sorted(list(range(_Numbered.samples)) * copies)
        missing, extra = set(expected) - set(seen), len(seen) - len(expected)
        expect(
            sorted(seen) == expected,
            f"in epoch {epoch} the ranks see {len(seen)} samples, {extra:+d} compared with the expected number; "
            f"{len(missing)} of {_Numbered.samples} are missing",
        )
        orders.append(seen)
    expect(orders[0] != orders[1], "both epochs have the same order")


def _epochs_seen(subject: StrategySubject) -> list[list[int]]:
    seen = Seen()
    train(subject, _Numbered(), [seen])
    return seen.epochs


@dataclass(frozen=True)
class _Ragged(Recipe):
    epochs: int | None = 2
    steps: int | None = None
    falling: bool = False
    """Whether later ranks have fewer batches."""


class _Unequal(IterableDataset[Any]):
    """A dataset of 4 + r batches on data rank r of n; with `falling`, 4 + (n - 1 - r)."""

    def __init__(self, module: RecipeModule) -> None:
        self.samples: Any = module.recipe.dataset()
        assert isinstance(module.recipe, _Ragged)
        ranks = module.trainer.collectives.data
        more = ranks.world_size - 1 - ranks.rank if module.recipe.falling else ranks.rank
        self.count = (4 + more) * module.batch_size

    def __iter__(self) -> Iterator[Any]:
        return iter([self.samples[index] for index in range(self.count)])


class _UnequalModule(RecipeModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_Unequal(self), self.batch_size)


@check(world_sizes=(2, 4))
def check_uneven_inputs(subject: StrategySubject) -> None:
    """Ranks with different numbers of batches end each epoch together, after the smallest number, without a hang."""
    recipes = (_Ragged(), _Ragged(falling=True, accumulate=3))
    by_rank = subject.run(_unequal, recipes)
    for index, recipe in enumerate(recipes):
        ranks = [trained[index] for trained in by_rank]
        steps, expected = [trained.steps for trained in ranks], 2 * math.ceil(4 / recipe.accumulate)
        with naming(recipe):
            expect(
                steps == [expected] * len(ranks),
                f"ranks with 4, 5, … batches make {steps} steps, not {expected} each",
            )
            outputs = [trained.outputs for trained in ranks]
            apart = max(float((other - outputs[0]).abs().max()) for other in outputs)
            expect(apart <= subject.tolerance(), f"after training, the ranks' outputs are {apart:.2g} apart")


def _unequal(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[Trained]:
    return [train(subject, recipe, module_class=_UnequalModule) for recipe in recipes]
