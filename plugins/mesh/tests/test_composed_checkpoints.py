"""Checkpoints of a composition are those of one process: under another composition, and under other strategies."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from mesh_subjects import composition
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly
from stratagem_testing.workers import shared_workers
from tensor_models import TENSOR, Sentences, below_net, go_on, save_on_the_way, tensors_at

HALF = 3
RECIPE = Sentences(kind="foreach", max_norm=0.1, steps=2 * HALF, accumulate=2)
PLAN = below_net({**TENSOR, "tokens": "rowwise", "head": "colwise_gathered"})

CUT = {"parallelize": {"net.blocks.*": "block"}}

SUBJECTS = {
    "single": StrategySubject("single", world_size=1),
    "ddp": StrategySubject("ddp", world_size=2, options={"timeout_s": 60}),
    "shard=2+tensor=2": composition("shard=2+tensor=2", 2, PLAN).at(4),
    "replicate=2+tensor=2": composition("replicate=2+tensor=2", 2, PLAN).at(4),
    "replicate=2+shard=2": composition("replicate=2+shard=2", 4).at(4),
    "shard=2+context=2": composition("shard=2+context=2", 2, context=CUT).at(4),
    "context=2+tensor=2": composition("context=2+tensor=2", 1, PLAN, context=CUT).at(4),
    "tensor=2": composition("tensor=2", 1, PLAN).at(2),
    "replicate=2+shard=2+tensor=2": composition("replicate=2+shard=2+tensor=2", 4, PLAN).at(8),
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
        ("shard=2+tensor=2", "single"),
        ("ddp", "shard=2+tensor=2"),
        ("shard=2+context=2", "context=2+tensor=2"),
        pytest.param("context=2+tensor=2", "single", marks=pytest.mark.long),
        pytest.param("single", "shard=2+context=2", marks=pytest.mark.long),
        pytest.param("shard=2+tensor=2", "replicate=2+tensor=2", marks=pytest.mark.long),
        pytest.param("replicate=2+tensor=2", "tensor=2", marks=pytest.mark.long),
        pytest.param("shard=2+tensor=2", "ddp", marks=pytest.mark.long),
        pytest.param("replicate=2+shard=2", "shard=2+tensor=2", marks=pytest.mark.long),
        pytest.param("replicate=2+shard=2+tensor=2", "single", marks=pytest.mark.long),
        pytest.param("single", "replicate=2+shard=2+tensor=2", marks=pytest.mark.long),
    ],
)
def test_goes_on_elsewhere(saved: Any, before: str, after: str, tmp_path: Any) -> None:
    subject = replace(SUBJECTS[after], folder=str(tmp_path))
    ranks = subject.run(go_on, RECIPE, saved(before))
    plain = plainly(RECIPE, subject.shares())
    for trained in ranks:
        assert len(trained.losses) == 2 * HALF
        trained.losses[:0] = plain.losses[: 2 * HALF]
        trained.rates = plain.rates
    expect_same(ranks, plain, 1e-5)


def test_has_the_tensors_of_one_process(saved: Any) -> None:
    """Moments too."""
    names = ("shard=2+tensor=2", "single")
    ours, theirs = (shared_workers().run(1, tensors_at, saved(name))[0] for name in names)
    assert ours.keys() == theirs.keys()
    assert any(key.endswith("head.weight/exp_avg_sq") for key in ours)
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[key], atol=2e-6, rtol=1e-4, msg=key)
