"""Loops that take gradients and steps into their own hands equal plain PyTorch, or end in a sentence."""

from __future__ import annotations

import pytest
from sharded_loops import check_all
from stratagem_sharded import DDPFullyShardedStrategy

REFUSED = {
    "assigned": "GradientError: the gradient of 'head.weight' was assigned by your code",
    "head_added": r"GradientError: SGD steps a parameter of shape \(4, 4\) that was added after setup",
    "functional": "ShardedUseError: '[a-z0-9.]+' isn't the parameter that setup\\(\\) sharded",
    "no_elements": "ConfigError: parameter 'nothing' has no elements",
    "caught_and_stepped": "GradientError: SGD is about to step with what an exception left of a backward",
}


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("each", [True, False])
def test_equal_to_plain_loops_or_refused(ranks: int, each: bool) -> None:
    strategy = DDPFullyShardedStrategy(start_method="fork", reduce_each_micro_batch=each)
    check_all(strategy, ranks, REFUSED, scalar=False)
