"""Checkpoints of a split module are those of one process: at any mesh, under any other strategy, with moments."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly
from stratagem_testing.workers import shared_workers
from tensor_models import TENSOR, Sentences, below_net, go_on, save_on_the_way, tensors_at

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
        ("2 × 2", "single"),
        ("2 × 2", "ddp 2"),
        ("2 × 2", "fsdp 4"),
        ("2 × 2", "tensor 4"),
        ("fsdp 4", "2 × 2"),
        ("single", "tensor 2"),
        ("tensor 4", "2 × 2"),
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
    ours, theirs = (shared_workers().run(1, tensors_at, saved(name))[0] for name in ("2 × 2", "single"))
    assert ours.keys() == theirs.keys()
    assert any(key.endswith("head.weight/exp_avg_sq") for key in ours)
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[key], atol=2e-6, rtol=1e-4, msg=key)
