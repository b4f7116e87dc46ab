"""Training continues at another number of ranks along `expert`, under other axes, and in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from mesh_subjects import composition
from mixture_models import Mixtures
from moved_runs import MovedRuns
from stratagem_testing import StrategySubject

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
def runs(tmp_path_factory: pytest.TempPathFactory) -> MovedRuns:
    return MovedRuns(SUBJECTS, RECIPE, HALF, tmp_path_factory)


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
def test_goes_on_elsewhere(runs: MovedRuns, before: str, after: str, tmp_path: Path) -> None:
    """Weights and moments of the optimizer are those of one process."""
    runs.goes_on(before, after, tmp_path)
