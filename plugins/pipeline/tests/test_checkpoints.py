"""Checkpoints of a pipeline are those of any strategy, at any number of stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import SaveAt
from pipelines import OPTIONS, Recipe, Stack, Surrounded, Tied, one_copy, two_copies
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Trained
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly, train
from torch import nn

import stratagem

PIPE = StrategySubject("pipeline", world_size=2, options=OPTIONS, data_ranks=one_copy)


@dataclass(frozen=True)
class Adaptive(Stack):
    steps: int | None = 8

    def optimizers(self, net: nn.Module) -> Any:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2)]


@dataclass(frozen=True)
class AdaptiveTied(Tied):
    def optimizers(self, net: nn.Module) -> Any:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2)]


def save(subject: StrategySubject, recipe: Recipe, path: str) -> None:
    train(subject, recipe, [SaveAt(4, path)], max_steps=4)


def go_on(subject: StrategySubject, recipe: Recipe, path: str) -> Trained:
    return train(subject, recipe, ckpt_path=path)


def expect_continued(subject: StrategySubject, recipe: Recipe, path: str, tolerance: float) -> None:
    ranks, plain = subject.run(go_on, recipe, path), plainly(recipe, subject.shares())
    for trained in ranks:
        assert len(trained.losses) == 4
        trained.losses[:0] = plain.losses[:4]
        trained.rates = plain.rates
    expect_same(ranks, plain, tolerance)


def variants(folder: str) -> dict[str, StrategySubject]:
    interleaved = {**OPTIONS, "schedule": "interleaved_1f1b"}
    made = {
        "two": PIPE,
        "four": PIPE.at(4),
        "interleaved": replace(PIPE, options=interleaved),
        "copies": replace(PIPE.at(4), options={**OPTIONS, "data_parallel_size": 2}, data_ranks=two_copies),
        "single": StrategySubject("single", world_size=1),
        "fsdp": StrategySubject("fsdp", world_size=2),
    }
    return {name: replace(subject, folder=folder) for name, subject in made.items()}


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("two", ("four", "interleaved", "single", "fsdp")), ("copies", ("two",)), ("single", ("interleaved",))],
)
def test_goes_on_elsewhere(tmp_path: Path, saved: str, loaded: tuple[str, ...]) -> None:
    subjects, path = variants(str(tmp_path)), str(tmp_path / "checkpoint")
    subjects[saved].run(save, Adaptive(), path)
    for each in loaded:
        expect_continued(subjects[each], Adaptive(), path, 5e-5)


def test_shared_weights_and_those_outside(tmp_path: Path) -> None:
    subjects, path = variants(str(tmp_path)), str(tmp_path / "checkpoint")
    for recipe in (AdaptiveTied(), Surrounded()):
        subjects["two"].run(save, recipe, path)
        expect_continued(subjects["four" if isinstance(recipe, Surrounded) else "two"], recipe, path, 5e-5)
        expect_continued(subjects["single"], recipe, path, 5e-5)


def test_a_rank_has_the_tensors_of_its_stages_alone(tmp_path: Path) -> None:
    subject = replace(PIPE, folder=str(tmp_path), options={**OPTIONS, "balance": [5, 6]})
    ranks = subject.run(sizes)
    whole = sum(p.numel() for p in Stack().net().parameters())
    for names, held, moments in ranks:
        assert names == [name for name, _ in Stack().net().named_parameters(prefix="net")]
        assert moments == 2 * held
    assert [held for _, held, _ in ranks] == [6 * 32 + 32 + 16, whole - 6 * 32 - 32 - 16]


def sizes(subject: StrategySubject) -> tuple[list[str], int, int]:
    looked = Looks()
    train(subject, Adaptive(steps=2), [looked])
    return looked.names, looked.held, looked.moments


class Looks(stratagem.Callback):
    """Counts what is in this rank's memory."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.names = [name for name, _ in module.named_parameters()]
        self.held = sum(p.numel() for p in module.parameters() if not p.is_meta)
        (optimizer,) = trainer.prepared.optimizers
        states = [value for state in optimizer.state.values() for value in state.values()]
        self.moments = sum(value.numel() for value in states if value.dim())
