"""Training continues at another number of ranks along `expert`, under other axes, and in one process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from mesh_subjects import composition
from mixture_models import Mixtures
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly
from tensor_models import go_on, save_on_the_way

HALF = 3
RECIPE = Mixtures(kind="foreach", max_norm=0.1, steps=2 * HALF)

SUBJECTS = {
    "single": StrategySubject("single", world_size=1),
    "ddp": StrategySubject("ddp", world_size=2, options={"timeout_s": 60}),
    "expert=2": composition("expert=2", 2).at(2),
    "expert=4": composition("expert=4", 4).at(4),
    "shard=2+expert=2": composition("shard=2+expert=2", 4).at(4),
    "replicate=2+expert=2": composition("replicate=2+expert=2", 4).at(4),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def save(name: str) -> str:
        folder = tmp_path_factory.mktemp("saved")
        path = str(folder / "checkpoint")
        replace(SUBJECTS[name], folder=str(folder)).run(save_on_the_way, RECIPE, HALF, path)
        return path

    return save


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("shard=2+expert=2", "single"),
        ("expert=2", "shard=2+expert=2"),
        ("ddp", "expert=4"),
        pytest.param("expert=4", "expert=2", marks=pytest.mark.long),
        pytest.param("expert=2", "expert=4", marks=pytest.mark.long),
        pytest.param("single", "shard=2+expert=2", marks=pytest.mark.long),
        pytest.param("shard=2+expert=2", "replicate=2+expert=2", marks=pytest.mark.long),
        pytest.param("replicate=2+expert=2", "ddp", marks=pytest.mark.long),
    ],
)
def test_goes_on_elsewhere(saved: Any, before: str, after: str, tmp_path: Any) -> None:
    """Weights and moments of the optimizer are those of one process."""
    subject = replace(SUBJECTS[after], folder=str(tmp_path))
    ranks = subject.run(go_on, RECIPE, saved(before))
    plain = plainly(RECIPE, subject.shares())
    for trained in ranks:
        assert len(trained.losses) == HALF
        trained.losses[:0] = plain.losses[:HALF]
        trained.rates = plain.rates
    expect_same(ranks, plain, 1e-5)
