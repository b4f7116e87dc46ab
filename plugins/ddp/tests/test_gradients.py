"""Loops that take gradients into their own hands end where one process does, or are refused in a sentence."""

from __future__ import annotations

import pytest
import torch
from steps_by_hand import fitted

from stratagem.errors import GradientError
from tests.parity.hands_on_rows import OF_GRADIENTS
from tests.support.hands_on import check_rows

REFUSED = {
    "pcgrad": "^the gradient of '0.weight' was assigned by your code and differs between ranks",
    "clip_within_no_sync": "^the gradient of '0.weight' was changed before it was averaged over the ranks",
    "head_replaced_in_group": "was added after setup",
    "optimizer_in_backward": "steps within a backward",
    "shared_trunk": "of Sequential is a parameter of Sequential too",
}
# A sharded optimizer stands for the one that was given.
REFUSED_SHARDED = {"given_optimizer_stepped": "step the optimizer that setup"}


@pytest.mark.parametrize(
    ("strategy", "refused"), [("ddp", REFUSED), ("ddp_sharded", {**REFUSED, **REFUSED_SHARDED})]
)
def test_a_loop_equals_one_process_or_is_refused(strategy: str, refused: dict[str, str]) -> None:
    check_rows(strategy, OF_GRADIENTS, refused)


@pytest.mark.parametrize(
    ("way", "strategy"), [("raw", "ddp"), ("closure", "ddp_sharded"), ("two", "ddp_sharded")]
)
def test_a_module_that_steps_by_hand_equals_one_process(way: str, strategy: str) -> None:
    ranks = fitted(way, strategy, devices=2)
    for key, value in fitted(way, "single", devices=1).items():
        torch.testing.assert_close(ranks[key], value, rtol=1e-9, atol=1e-11)


def test_gradients_that_a_module_assigns_are_refused() -> None:
    with pytest.raises(
        GradientError, match=r"'net\.0\.weight' was assigned .*optimizer\.average_gradients\(\)"
    ):
        fitted("assigned", "ddp", devices=2)
