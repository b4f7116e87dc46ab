"""Each of torch's optimizers, and some users' own, gives a plain loop's numbers on split layers, or is refused."""

from __future__ import annotations

from functools import partial

import pytest
from all_optimizers import compare
from stratagem_testing import StrategySubject

NOT_HERE = ["Adam capturable", "SparseAdam"]


def copies(tensors: int, world_size: int) -> int:
    return world_size // tensors


@pytest.mark.parametrize("tensors", [1, 2])
def test_two_ranks(tensors: int) -> None:
    plan = {"hidden": "colwise_gathered", "words": "rowwise"}
    subject = StrategySubject(
        "model_parallel",
        options={"timeout_s": 60, "tensor_parallel_size": tensors, "parallelize": plan},
        data_ranks=partial(copies, tensors),
        world_size=2,
    )
    compare(subject, NOT_HERE)
