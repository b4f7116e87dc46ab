"""Models with experts that are split among ranks train as in plain torch in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mesh_subjects import composition
from mixture_models import Mixtures
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import naming, plainly, train_each

TOLERANCE = 1e-6

TWO = {"expert=2": composition("expert=2", 2)}
FOUR = {
    "expert=4": composition("expert=4", 4),
    "shard=2+expert=2": composition("shard=2+expert=2", 4),
    "replicate=2+expert=2": composition("replicate=2+expert=2", 4),
}
EIGHT = {
    "replicate=2+shard=2+expert=2": composition("replicate=2+shard=2+expert=2", 8),
    "shard=2+expert=2+tensor=2": composition(
        "shard=2+expert=2+tensor=2", 4, {"net.tokens": "rowwise", "net.head": "colwise_gathered"}
    ),
}

# Clipping always bites in some, so that a norm that counts something twice or not at all shows.
OURS = (
    Mixtures(steps=10),
    Mixtures(steps=6, max_norm=0.1, accumulate=2, global_batch=16),
    Mixtures(steps=6, kind="foreach", max_norm=0.1),
    Mixtures(model="lopsided", steps=6),
)
THEIRS = tuple(Mixtures(model=name, steps=4, max_norm=0.5) for name in ("mixtral", "qwen3_moe", "gpt_oss"))
GROUPED = tuple(
    Mixtures(model="mixtral", steps=4, experts_implementation=how) for how in ("grouped_mm", "batched_mm")
)


def equals_one_process(
    subject: StrategySubject, world_size: int, folder: Path, recipes: tuple[Mixtures, ...]
) -> None:
    trying = replace(subject, world_size=world_size, folder=str(folder))
    by_rank = trying.run(train_each, recipes)
    for index, recipe in enumerate(recipes):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, trying.shares()), TOLERANCE)


def test_two_ranks(tmp_path: Path) -> None:
    equals_one_process(TWO["expert=2"], 2, tmp_path, OURS + THEIRS + GROUPED)


@pytest.mark.parametrize("name", FOUR)
def test_four_ranks(name: str, tmp_path: Path) -> None:
    equals_one_process(FOUR[name], 4, tmp_path, OURS)


@pytest.mark.long
@pytest.mark.parametrize("name", FOUR)
def test_models_of_transformers(name: str, tmp_path: Path) -> None:
    equals_one_process(FOUR[name], 4, tmp_path, THEIRS)


@pytest.mark.long
@pytest.mark.parametrize("name", EIGHT)
def test_three_axes(name: str, tmp_path: Path) -> None:
    equals_one_process(EIGHT[name], 8, tmp_path, OURS)
