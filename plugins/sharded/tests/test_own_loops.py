"""Loops that take gradients and steps into their own hands equal plain PyTorch, or end in a sentence."""

from __future__ import annotations

import pytest

from tests.parity.hands_on_rows import OF_SHARDS
from tests.support.hands_on import check_rows

REFUSED = {
    "assigned_head": "^the gradient of 'head.weight' was assigned by your code",
    "head_extended": r"^SGD steps a parameter of shape \(3, 3\) that was added after setup",
    "functional_of_changed": r"^'[a-z0-9.]+' isn't the parameter that setup\(\) sharded",
    "empty_parameter_clipped": "^parameter 'nothing' has no elements",
    "scalar_parameter": "^parameter 'scale' has no dimension along",
    "caught_and_stepped": "^SGD is about to step with what an exception left of a backward",
}


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("each", [True, False])
def test_equal_to_plain_loops_or_refused(ranks: int, each: bool) -> None:
    check_rows("ddp_fully_sharded", OF_SHARDS, REFUSED, ranks, reduce_each_micro_batch=each)


def test_sharded_states_with_closures_and_hooks() -> None:
    refused = {"states_loaded_each_step": "^ddp_sharded keeps the states of SGD in shards"}
    rows = [
        "closure_that_clips",
        "ascending_optimizer",
        "hooks_before_and_after",
        "states_loaded_each_step",
        "caught_in_closure",
        "scalar_parameter",
    ]
    check_rows("ddp_sharded", rows, refused)
