"""Checkpoints of a composition are those of one process: under another composition, and under other strategies."""

from __future__ import annotations

from pathlib import Path

import pytest
from mesh_subjects import composition
from moved_runs import MovedRuns
from stratagem_testing import StrategySubject
from tensor_models import TENSOR, Sentences, below_net

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
def runs(tmp_path_factory: pytest.TempPathFactory) -> MovedRuns:
    return MovedRuns(SUBJECTS, RECIPE, HALF, tmp_path_factory)


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
def test_goes_on_elsewhere(runs: MovedRuns, before: str, after: str, tmp_path: Path) -> None:
    runs.goes_on(before, after, tmp_path)


def test_has_the_tensors_of_one_process(runs: MovedRuns) -> None:
    """Moments too."""
    runs.has_the_tensors_of("shard=2+tensor=2", "single", among="head.weight/exp_avg_sq")
