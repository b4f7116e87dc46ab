"""Loops that take gradients and steps into their own hands equal plain PyTorch, or end in a sentence."""

from __future__ import annotations

import pytest

from tests.parity.hands_on_rows import OF_SHARDS
from tests.support.hands_on import check_rows

REFUSED = {
    "assigned_head": "^the gradient of 'head.weight' was assigned by your code",
    "head_extended": r"^SGD steps a parameter of shape \(3, 3\) that was added after setup",
    "functional_of_changed": r"^'[a-z0-9.]+' isn't the parameter that setup\(\) sharded",
    "caught_and_stepped": "^SGD is about to step with what an exception left of a backward",
}


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_equal_to_plain_loops_or_refused(ranks: int) -> None:
    check_rows("fsdp", OF_SHARDS, REFUSED, ranks)
