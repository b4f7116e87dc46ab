"""Training loops that take gradients into their own hands train as one process does, or are refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gradient_loops
import pytest
import torch
from gradient_loops import loss_of
from stratagem_deepspeed import DeepSpeedStrategy
from stratagem_deepspeed.conformance import SMALL
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD

from stratagem import Runtime
from stratagem.errors import StratagemError

Step = Callable[["Hands", nn.Module, Any, int], None]
STEPS = 5
LOOPS: dict[str, Step] = {}
REFUSED: dict[str, dict[int, str]] = {}
"""Loop → stage → what the sentence says."""
ALL, SHARDED = (0, 1, 2, 3), (1, 2, 3)


class Hands(gradient_loops.Hands):
    """Of float32, which the engine steps."""

    def batch(self, step: int, view: int = 0) -> torch.Tensor:
        return super().batch(step, view).float()


def loop(said: str = "", stages: tuple[int, ...] = ALL, **other: str) -> Callable[[Step], Step]:
    def note(function: Step) -> Step:
        name = function.__name__
        LOOPS[name] = function
        refused = dict.fromkeys(stages, said) if said else {}
        REFUSED[name] = {**refused, **{int(stage[-1]): text for stage, text in other.items()}}
        return function

    return note


@loop(stage_0=r"call runtime.backward\(loss\) in the place of loss.backward\(\)")
def raw_backward(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    loss_of(module(hands.batch(step))).backward()


@loop()
def two_forwards_and_one_loss(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    one, other = module(hands.batch(step)), module(hands.batch(step, view=1))
    hands.backward(loss_of(one) - (one * other.detach()).mean())


@loop()
def a_window(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    with hands.no_sync(module):
        hands.backward(loss_of(module(hands.batch(step))))
    hands.backward(loss_of(module(hands.batch(step, view=1))))
    module.eval()
    module(hands.batch(step, view=3))
    module.train()


@loop(stage_3="two forwards and then two backwards")
def two_forwards_and_a_window(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    one, other = module(hands.batch(step)), module(hands.batch(step, view=1))
    with hands.no_sync(module):
        hands.backward(loss_of(one))
    hands.backward(loss_of(other))


@loop()
def layers_frozen_at_times(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    module[0].requires_grad_(step >= 3)
    hands.backward(loss_of(module(hands.batch(step))))


@loop("a second backward came after", SHARDED)
def two_backwards(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    one, other = module(hands.batch(step)), module(hands.batch(step, view=1))
    hands.backward(loss_of(one))
    hands.backward(loss_of(other))


@loop("a second backward came after", SHARDED, stage_0="call runtime.backward")
def two_backwards_of_one_graph(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    loss = loss_of(module(hands.batch(step)))
    loss.backward(retain_graph=True)
    (0.5 * loss).backward()


@loop("zero_grad doesn't take them back", SHARDED)
def gradients_that_are_dropped(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    hands.backward(loss_of(module(hands.batch(step, view=1))))
    optimizer.zero_grad()
    hands.backward(loss_of(module(hands.batch(step))))


@loop(r"after a backward within runtime.no_sync\(\)")
def the_last_window_within_no_sync(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    with hands.no_sync(module):
        hands.backward(loss_of(module(hands.batch(step))))


@loop("clip by runtime.clip", SHARDED)
def clipping_by_hand(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    hands.backward(loss_of(module(hands.batch(step))))
    clip_grad_norm_(module.parameters(), 0.1)


@loop("p.grad has no values that could be read", SHARDED)
def a_norm_by_hand(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    hands.backward(loss_of(module(hands.batch(step))))
    norm = sum(p.grad.data.norm(2).item() ** 2 for p in module.parameters() if p.grad is not None) ** 0.5
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.1 / norm)


@loop("was assigned by your code", SHARDED, stage_0="call runtime.backward")
def gradients_of_autograd(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    parameters = list(module.parameters())
    loss = loss_of(module(hands.batch(step)))
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.grad = gradient


@loop("got a closure")
def a_closure(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(module(hands.batch(step)))
        hands.backward(loss)
        return loss

    optimizer.step(closure)


@loop("has step hooks, and stage [123] of deepspeed steps flat shards", SHARDED)
def a_step_hook(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    def halve(stepped: Any, *_: Any) -> None:
        for parameter in stepped.param_groups[0]["params"]:
            parameter.grad.mul_(0.5 / parameter.grad.norm())

    if step == 0:
        optimizer.register_step_pre_hook(halve)
    hands.backward(loss_of(module(hands.batch(step))))


@loop("a part of the gradients of a backward that wasn't finished", SHARDED)
def an_exception_in_the_backward(hands: Hands, module: nn.Module, optimizer: Any, step: int) -> None:
    try:
        output = module(hands.batch(step, view=1))
        hands.backward(gradient_loops._Raises.apply(output).sum() + output.sum())
    except ArithmeticError:
        optimizer.zero_grad()
    hands.backward(loss_of(module(hands.batch(step))))


def train(hands: Hands, step_fn: Step) -> dict[str, torch.Tensor]:
    module, optimizer = hands.setup(*_model_and_optimizer())
    for step in range(STEPS):
        step_fn(hands, module, optimizer, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return gradient_loops.values_of(module)


def _model_and_optimizer() -> tuple[nn.Module, Any]:
    model = gradient_loops.net().float()
    return model, SGD(model.parameters(), lr=0.1, momentum=0.9)


def on_ranks(runtime: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, step_fn in LOOPS.items():
        try:
            found[name] = train(Hands(runtime), step_fn)
        except StratagemError as error:
            found[name] = str(error)
        except Exception as error:
            found[name] = f"an error that is no sentence of Stratagem's: {type(error).__name__}: {error}"
    try:
        hands, model = Hands(runtime), gradient_loops.net().float()
        hands.backward(loss_of(hands.setup(model)(hands.batch(0))))
    except StratagemError as error:
        found["no optimizer"] = str(error)
    return found


@pytest.fixture(scope="module", params=ALL)
def outcomes(request: Any) -> Any:
    strategy = DeepSpeedStrategy(stage=request.param, **SMALL)
    runtime = Runtime(strategy=strategy, accelerator="cpu", devices=2)
    return request.param, runtime.launch(on_ranks, quiet=True)


@pytest.mark.parametrize("name", list(LOOPS))
def test_a_loop_equals_one_process_or_is_refused(name: str, outcomes: Any) -> None:
    stage, by_name = outcomes
    outcome = by_name[name]
    if stage in REFUSED[name]:
        assert isinstance(outcome, str), "it isn't refused"
        assert re.search(REFUSED[name][stage], outcome)
        return
    assert not isinstance(outcome, str), outcome
    expected = train(Hands(), LOOPS[name])
    for key, value in expected.items():
        torch.testing.assert_close(outcome[key], value, rtol=1e-5, atol=1e-5)


def test_optimizers_that_setup_did_not_get_are_refused(outcomes: Any) -> None:
    assert "setup() got no optimizer with Sequential" in outcomes[1]["no optimizer"]
