"""Loops that take gradients into their own hands end where one process does, or are refused in a sentence."""

from __future__ import annotations

import re
from typing import Any

import gradient_loops
import pytest
import torch

from stratagem import Runtime
from stratagem.errors import GradientError

# A sharded optimizer stands for the one that was given.
REFUSED_SHARDED = {"the_optimizer_that_setup_was_given": "step the optimizer that setup"}


@pytest.fixture(scope="module", params=["ddp", "ddp_sharded"])
def found(request: Any) -> Any:
    runtime = Runtime(strategy=request.param, accelerator="cpu", devices=2)
    return request.param, runtime.launch(gradient_loops.on_ranks, quiet=True)


@pytest.mark.parametrize("name", list(gradient_loops.LOOPS))
def test_a_loop_equals_one_process_or_is_refused(name: str, found: Any) -> None:
    strategy, outcomes = found
    refused = {**gradient_loops.REFUSED, **(REFUSED_SHARDED if strategy == "ddp_sharded" else {})}
    outcome = outcomes[name]
    if name in refused:
        assert isinstance(outcome, str), "it isn't refused"
        assert re.search(refused[name], outcome)
        return
    assert not isinstance(outcome, str), outcome
    for key, value in gradient_loops.in_one_process(name).items():
        torch.testing.assert_close(outcome[key], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("way", "strategy"), [("raw", "ddp"), ("closure", "ddp_sharded"), ("two", "ddp_sharded")]
)
def test_a_module_that_steps_by_hand_equals_one_process(way: str, strategy: str) -> None:
    ranks = gradient_loops.fitted(way, strategy, devices=2)
    for key, value in gradient_loops.fitted(way, "single", devices=1).items():
        torch.testing.assert_close(ranks[key], value, rtol=1e-9, atol=1e-11)


def test_gradients_that_a_module_assigns_are_refused() -> None:
    with pytest.raises(
        GradientError, match=r"'net\.0\.weight' was assigned .*optimizer\.average_gradients\(\)"
    ):
        gradient_loops.fitted("assigned", "ddp", devices=2)
