"""Loops that take gradients and steps into their own hands equal plain PyTorch, or end in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.hands_on_rows import OF_SHARDS
from tests.support.hands_on import check_rows

SPLIT_REFUSED = {
    "head_extended": r"^SGD steps a parameter of shape \(3, 3\) that was added after setup",
    "caught_and_stepped": "^SGD is about to step with what an exception left of a backward",
    "functional_of_changed": r"^'blocks\.0\.0\.weight' isn't the parameter that setup\(\) split",
}
REFUSED = {
    **SPLIT_REFUSED,
    "assigned_head": "^the gradient of 'head.weight' was assigned by your code",
    "functional_of_changed": r"^'[a-z0-9.]+' isn't the parameter that setup\(\) sharded",
}
"""Where copies are sharded, and ranks have different batches."""


@pytest.mark.parametrize(
    ("split", "refused"),
    [
        ({"tensor_parallel_size": 1, "parallelize": None}, REFUSED),
        ({"parallelize": {"blocks.*.0": "colwise_gathered"}}, SPLIT_REFUSED),
    ],
)
def test_equal_to_plain_loops_or_refused(split: dict[str, Any], refused: dict[str, str]) -> None:
    check_rows("model_parallel", OF_SHARDS, refused, **split)
