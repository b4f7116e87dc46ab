"""Loops that take gradients into their own hands end where one process does, or are refused in a sentence."""

from __future__ import annotations

import re
from typing import Any

import gradient_loops
import pytest
import torch
from gradient_loops import STEPS, Hands, loss_of, net, values_of
from torch import nn
from torch.optim import SGD

from stratagem import Runtime

pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")

LATE = "setup\\(\\) didn't get it"
REFUSED = {
    **gradient_loops.REFUSED,
    "a_second_backward_of_one_graph": "was computed again before its first value was averaged",
    "an_optimizer_made_after_setup": LATE,
    "optimizers_in_the_backward": LATE,
    "the_optimizer_that_setup_was_given": "step the optimizer that setup",
    "gradients_of_autograd": "'0.weight' was assigned by your code.* call runtime.average_gradients",
    "gradients_of_autograd_that_are_averaged": "were changed by your code after they had been averaged",
    "clipping_by_hand": "were changed by your code after .* clip by runtime.clip",
    "averages_of_changed_gradients": "were changed by your code after",
}
# They read all parameters' gradients, of which a rank has those that it steps.
READ_ALL = {
    "gradients_changed_and_replaced",
    "a_schedule_and_hooks_after_setup",
    "norms_that_are_read_before_the_step",
}


def clipping_by_hand(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        optimizer.zero_grad()
        hands.backward(loss_of(module(hands.batch(step))))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


def averages_of_changed_gradients(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    hands.backward(loss_of(module(hands.batch(0))))
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= 2
    hands.average_gradients(optimizer)
    optimizer.step()
    return model


def clip(hands: Hands, model: nn.Module, optimizer: Any) -> None:
    if hands.runtime:
        hands.runtime.clip(optimizer, max_norm=0.5)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def averages_that_the_runtime_clips(hands: Hands) -> nn.Module:
    """Gradients that are assigned, and those of micro-batches within no_sync."""
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        if step % 2:
            loss = loss_of(module(hands.batch(step)))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.grad = gradient
            hands.average_gradients(optimizer)
        else:
            with hands.no_sync(module):
                hands.backward(loss_of(module(hands.batch(step))))
        hands.average_gradients(optimizer)
        clip(hands, model, optimizer)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 3 == 0)
    return model


def gradients_that_are_dropped(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        hands.backward(loss_of(module(hands.batch(step, view=1))))
        if step % 2:
            with hands.no_sync(module):
                hands.backward(loss_of(module(hands.batch(step, view=2))))
        output = module(hands.batch(step))
        optimizer.zero_grad(set_to_none=step < 3)
        hands.backward(loss_of(output))
        optimizer.step()
    return model


def two_optimizers_and_a_window(hands: Hands) -> nn.Module:
    """Both step what is left within no_sync; one of the layers gets no gradient at times."""
    model = net()
    module, one, other = hands.setup(
        model, SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.05, momentum=0.9)
    )
    for step in range(STEPS):
        model[0].requires_grad_(step != 2)
        with hands.no_sync(module):
            for view in range(2):
                hands.backward(loss_of(module(hands.batch(step, view))))
        one.step()
        other.step()
        one.zero_grad()
        other.zero_grad()
    return model


OWN = {
    each.__name__: each
    for each in (
        clipping_by_hand,
        averages_of_changed_gradients,
        averages_that_the_runtime_clips,
        gradients_that_are_dropped,
        two_optimizers_and_a_window,
    )
}
LOOPS = {**{name: each for name, each in gradient_loops.LOOPS.items() if name not in READ_ALL}, **OWN}


def on_ranks(runtime: Any) -> Any:
    return gradient_loops.on_ranks(runtime, LOOPS)


@pytest.fixture(scope="module", params=[2**23, 0], ids=["buckets", "one_by_one"])
def outcomes(request: Any) -> Any:
    options = {"reduce_buffer_size": request.param, "timeout_s": 60}
    runtime = Runtime(strategy="fairscale_sharded", accelerator="cpu", devices=2, strategy_options=options)
    return runtime.launch(on_ranks, quiet=True)


@pytest.mark.parametrize("name", list(LOOPS))
def test_a_loop_equals_one_process_or_is_refused(name: str, outcomes: Any) -> None:
    outcome = outcomes[name]
    if name in REFUSED:
        assert isinstance(outcome, str), "it isn't refused"
        assert re.search(REFUSED[name], outcome)
        return
    assert not isinstance(outcome, str), outcome
    for key, value in values_of(LOOPS[name](Hands())).items():
        torch.testing.assert_close(outcome[key], value, rtol=1e-9, atol=1e-11)
