"""Loops that take gradients and steps into their own hands equal plain PyTorch, or end in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from sharded_loops import check_all
from stratagem_model_parallel import ModelParallelStrategy

SPLIT_REFUSED = {
    "functional": "RuntimeError: .* got mixed torch.Tensor and DTensor",  # torch's words: nothing of ours is called
    "head_added": r"GradientError: SGD steps a parameter of shape \(4, 4\) that was added after setup",
    "caught_and_stepped": "GradientError: SGD is about to step with what an exception left of a backward",
}
REFUSED = {
    **SPLIT_REFUSED,
    "assigned": "GradientError: the gradient of 'head.weight' was assigned by your code",
    "functional": r"ShardedUseError: '[a-z0-9.]+' isn't the parameter that setup\(\) sharded",
}
"""Where copies are sharded, and ranks have different batches."""


@pytest.mark.parametrize(
    ("split", "refused"),
    [
        ({"tensor_parallel_size": 1}, REFUSED),
        ({"parallelize": {"blocks.*.0": "colwise_gathered"}}, SPLIT_REFUSED),
    ],
)
def test_equal_to_plain_loops_or_refused(split: dict[str, Any], refused: dict[str, str]) -> None:
    check_all(ModelParallelStrategy(start_method="fork", **split), 2, refused, scalar=True)
