"""Loops that take gradients and steps into their own hands equal plain PyTorch, or end in a sentence."""

from __future__ import annotations

import pytest
from sharded_loops import check_all
from stratagem_sharded import DDPFullyShardedStrategy, DDPShardedStrategy

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


def test_sharded_states_with_closures_and_hooks() -> None:
    refused = {"state_dict": "ConfigError: ddp_sharded keeps the states of SGD in shards"}
    names = ["with_closure", "ascending", "step_hooks", "state_dict", "caught_in_closure"]
    check_all(DDPShardedStrategy(start_method="fork"), 2, refused, scalar=True, names=names)
