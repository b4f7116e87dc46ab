"""Between two runs in the same processes, split layers are plain ones, which the next run splits as before."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from stratagem_testing import StrategySubject
from stratagem_testing.strategies.stages import check_of
from tensor_models import SEQUENCE, TENSOR, Sentences, below_net

SHORT = Sentences(steps=4)


def copies(tensors: int, world_size: int) -> int:
    return world_size // tensors


@pytest.mark.parametrize(
    ("tensors", "options", "recipe"),
    [
        (2, {"parallelize": below_net(TENSOR)}, SHORT),
        (2, {"parallelize": below_net(SEQUENCE)}, SHORT),
        (1, {"parallelize": below_net(TENSOR)}, SHORT),
        (2, {}, Sentences(steps=4, model="encoder")),
    ],
    ids=["tensor", "sequence", "data", "built-in plans"],
)
def test_fit_predict_fit(tensors: int, options: dict[str, Any], recipe: Sentences) -> None:
    subject = StrategySubject(
        "model_parallel",
        options={"timeout_s": 60, "tensor_parallel_size": tensors, **options},
        data_ranks=partial(copies, tensors),
        world_size=2,
    )
    check_of(subject, recipe, may_refuse=False)
