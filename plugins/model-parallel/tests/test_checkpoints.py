"""Checkpoints of a split module are those of one process: at any mesh, under any other strategy, with moments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moved_runs import MovedRuns
from stratagem_testing import StrategySubject
from tensor_models import TENSOR, Sentences, below_net

HALF = 3
RECIPE = Sentences(kind="foreach", max_norm=0.1, steps=2 * HALF, accumulate=2)
PLAN = below_net({**TENSOR, "tokens": "rowwise", "head": "colwise_gathered"})


def copies(tensors: int, world_size: int) -> int:
    return world_size // tensors


def split(world_size: int, tensors: int) -> StrategySubject:
    options: dict[str, Any] = {"timeout_s": 60, "tensor_parallel_size": tensors, "parallelize": PLAN}
    return StrategySubject(
        "model_parallel", options=options, data_ranks=partial(copies, tensors), world_size=world_size
    )


SUBJECTS = {
    "single": StrategySubject("single", world_size=1),
    "ddp 2": StrategySubject("ddp", world_size=2, options={"timeout_s": 60}),
    "fsdp 4": StrategySubject("fsdp", world_size=4, options={"timeout_s": 60}),
    "2 × 2": split(4, 2),
    "tensor 4": split(4, 4),
    "tensor 2": split(2, 2),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> MovedRuns:
    return MovedRuns(SUBJECTS, RECIPE, HALF, tmp_path_factory)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2 × 2", "single"),
        ("2 × 2", "ddp 2"),
        ("2 × 2", "fsdp 4"),
        ("2 × 2", "tensor 4"),
        ("fsdp 4", "2 × 2"),
        ("single", "tensor 2"),
        ("tensor 4", "2 × 2"),
    ],
)
def test_goes_on_elsewhere(runs: MovedRuns, before: str, after: str, tmp_path: Path) -> None:
    runs.goes_on(before, after, tmp_path)


def test_has_the_tensors_of_one_process(runs: MovedRuns) -> None:
    runs.has_the_tensors_of("2 × 2", "single", among="head.weight/exp_avg_sq")
