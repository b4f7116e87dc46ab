"""Loops that take gradients into their own hands end where one process does, or are refused in a sentence."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import gradient_loops
import pytest
import torch
from stratagem_bagua import BaguaStrategy
from torch.optim import SGD

from stratagem import Runtime
from stratagem.errors import GradientError

LATE = "setup\\(\\) didn't get it"
REFUSED = {
    **gradient_loops.REFUSED,
    "an_optimizer_made_after_setup": LATE,
    "optimizers_in_the_backward": LATE,
}
# A gradient is followed from the first backward on that finds its parameter in the module.
RIGHT = {"a_head_that_is_replaced"}
STRATEGIES = {
    "gradient_allreduce": {},
    "async": {"warmup_steps": 100},
}


@pytest.fixture(scope="module", params=STRATEGIES)
def outcomes(request: Any) -> Any:
    strategy = BaguaStrategy(request.param, **STRATEGIES[request.param])
    runtime = Runtime(strategy=strategy, accelerator="cpu", devices=2)
    return request.param, runtime.launch(gradient_loops.on_ranks, quiet=True)


@pytest.mark.parametrize("name", list(gradient_loops.LOOPS))
def test_a_loop_equals_one_process_or_is_refused(name: str, outcomes: Any) -> None:
    algorithm, by_name = outcomes
    outcome = by_name[name]
    if algorithm == "async" and name == "the_optimizer_that_setup_was_given":
        assert "step the optimizer that setup() returned" in outcome
        return
    if name in REFUSED and name not in RIGHT:
        assert isinstance(outcome, str), "it isn't refused"
        assert re.search(REFUSED[name], outcome)
        return
    assert not isinstance(outcome, str), outcome
    for key, value in gradient_loops.in_one_process(name).items():
        torch.testing.assert_close(outcome[key], value, rtol=1e-9, atol=1e-11)


def test_sums_are_made_once_or_refused() -> None:
    strategy = BaguaStrategy(average=False)
    runtime = Runtime(strategy=strategy, accelerator="cpu", devices=2)
    right, unsummed, twice = runtime.launch(_sums, quiet=True)
    first, second = (gradient_loops.Hands() for _ in range(2))
    for rank, hands in enumerate((first, second)):
        hands.rank, hands.world_size = rank, 2
    model = gradient_loops.net()
    for step in range(3):
        for hands in (first, second):
            for view in range(2):
                gradient_loops.loss_of(model(hands.batch(step, view))).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
    for name, value in gradient_loops.values_of(model).items():
        torch.testing.assert_close(right[name], value, rtol=1e-9, atol=1e-11)
    assert "aren't summed over the ranks" in unsummed
    assert "are summed already" in twice


def _sums(runtime: Any) -> Any:
    def train(in_no_sync: tuple[bool, bool]) -> Any:
        model = gradient_loops.net()
        hands = gradient_loops.Hands(runtime)
        module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.01))
        for step in range(3):
            for view, inside in enumerate(in_no_sync):
                with hands.no_sync(module) if inside else nullcontext():
                    hands.backward(gradient_loops.loss_of(module(hands.batch(step, view))))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return gradient_loops.values_of(model)

    found: list[Any] = [train((True, False))]
    for wrong in ((True, True), (False, False)):
        try:
            found.append(train(wrong))
        except GradientError as error:
            found.append(str(error))
    return found
