"""Under context_parallel the trainer trains a transformer as plain torch does in one process, and leaves it whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.strategies.stages import check_of
from stratagem_testing.trained import naming, plainly, train_each
from tensor_models import Sentences

TOLERANCE = 5e-6
RECIPES = (
    Sentences(max_norm=0.1, steps=10),
    Sentences(kind="foreach", accumulate=2, max_norm=0.1, steps=6),
    Sentences(model="encoder-last", steps=6),
)


def own_or_known(module: Any, mesh: Any) -> Any:
    return (
        {"net.blocks.*": "block"} if hasattr(module.net, "blocks") else {"net.encoder.layers.*": {"src": 0}}
    )


def subject(world_size: int, contexts: int, **options: Any) -> StrategySubject:
    return StrategySubject(
        "context_parallel",
        options={"timeout_s": 60, "context_parallel_size": contexts, "parallelize": own_or_known, **options},
        data_ranks=partial(groups, contexts),
        world_size=world_size,
    )


def groups(contexts: int, world_size: int) -> int:
    return world_size // contexts


@pytest.mark.parametrize(("world_size", "contexts", "attention"), [(2, 2, "ring"), (4, 2, "ulysses")])
def test_equals_plain_torch(world_size: int, contexts: int, attention: str, tmp_path: Path) -> None:
    trying = replace(subject(world_size, contexts, attention=attention), folder=str(tmp_path))
    by_rank = trying.run(train_each, RECIPES)
    for index, recipe in enumerate(RECIPES):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, trying.shares()), TOLERANCE)


def test_fit_predict_fit() -> None:
    check_of(subject(2, 2), Sentences(steps=4), may_refuse=False)
