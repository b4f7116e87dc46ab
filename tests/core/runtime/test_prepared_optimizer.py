"""The optimizer that `Runtime.setup` returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from prepared_objects import RecordingPrepared, prepare, session, wrapped
from threads import on_threads
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from stratagem.runtime.loop import wrap
from stratagem.runtime.prepared_optimizer import PreparedOptimizer
from stratagem.strategies.prepared import Prepared


def test_a_step_goes_through_the_strategy_and_the_guard() -> None:
    prepared, made = (
        prepare(
            RecordingPrepared, lambda net: SGD([net.weight], lr=0.5), lambda net: SGD([net.bias], lr=0.5)
        ),
        session(),
    )
    first, second = wrap(prepared, prepared.original_module, made)[1]
    prepared.original_module(torch.ones(1, 2)).sum().backward()
    assert second.step() is None
    assert (prepared.original_module.bias.item(), made.its_guard.steps) == (-0.5, 1)
    second.zero_grad()
    first.step()
    assert prepared.calls == [("step", 1), ("zero_grad", 1), ("step", 0)]
    assert prepared.original_module.bias.grad is None
    assert prepared.original_module.weight.grad is not None


def test_gradients_are_filled_with_zeros_where_the_loop_asks_for_that() -> None:
    """A parameter without a gradient isn't stepped; one with zeros is, as by momentum."""
    prepared = prepare(RecordingPrepared)
    module, (optimizer,) = wrap(prepared, prepared.original_module, session())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    net = prepared.original_module
    assert net.weight.grad.tolist() == [[0, 0]]
    optimizer.zero_grad()
    assert net.weight.grad is None


def test_a_closure_is_evaluated_and_its_loss_is_the_mean_over_ranks() -> None:
    losses: list[Any] = []

    class Watched(SGD):
        def step(self, closure: Any = None) -> None:
            losses.append(closure())

    def run(collectives: Any) -> None:
        prepared = prepare(Prepared, lambda net: Watched(net.parameters(), lr=0.5))
        wrapped(prepared, session(collectives=collectives)).step(
            lambda: torch.tensor(float(collectives.rank))
        )

    on_threads(2, run)
    assert [loss.item() for loss in losses] == [0.5, 0.5]


def test_schedulers_change_the_rate_of_the_optimizer_it_stands_for() -> None:
    prepared = prepare()
    optimizer = wrapped(prepared)
    assert isinstance(optimizer, PreparedOptimizer)
    scheduler = StepLR(optimizer, 1, gamma=0.1)
    optimizer.step()
    scheduler.step()
    assert prepared.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05)
    assert optimizer.defaults == prepared.optimizers[0].defaults


def test_states_are_those_of_the_optimizer_it_stands_for() -> None:
    def momentum(net: Any) -> Any:
        return SGD(net.parameters(), lr=0.5, momentum=0.9)

    source = prepare(Prepared, momentum)
    source.original_module(torch.ones(1, 2)).sum().backward()
    wrapped(source).step()
    target = prepare(Prepared, momentum)
    optimizer = wrapped(target)
    optimizer.load_state_dict(wrapped(source).state_dict())
    inner = target.optimizers[0]
    assert optimizer.state is inner.state
    assert optimizer.param_groups is inner.param_groups
    assert inner.state[target.original_module.bias]["momentum_buffer"].item() == 1


def test_a_schedule_goes_on_after_a_load() -> None:
    """Loading replaces the groups of the user's optimizer."""
    source, target = prepare(), prepare()
    optimizer = wrapped(target)
    scheduler = StepLR(optimizer, 1, gamma=0.1)
    optimizer.load_state_dict(wrapped(source).state_dict())
    target.optimizers[0].load_state_dict(source.optimizers[0].state_dict())
    optimizer.step()
    scheduler.step()
    assert target.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_schedule_may_be_made_before_or_after() -> None:
    for before in (True, False):
        prepared = prepare(RecordingPrepared)
        inner = prepared.optimizers[0]
        if before:
            scheduler = StepLR(inner, 1, gamma=0.1)
        optimizer = wrapped(prepared)
        if not before:
            scheduler = StepLR(optimizer, 1, gamma=0.1)
        prepared.original_module(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
        assert prepared.calls == [("step", 0)]
        assert (prepared.original_module.bias.item(), inner.param_groups[0]["lr"]) == (-0.5, 0.05)


class Sharp(SGD):
    """Has attributes and methods that `Optimizer` doesn't have."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.5)
        self.radius = 1.0

    def grow(self) -> float:
        self.radius *= 2
        return self.radius


def test_an_optimizer_is_otherwise_the_users() -> None:
    prepared = prepare(Prepared, lambda net: Sharp(net.parameters()))
    optimizer, inner, net = wrapped(prepared), prepared.optimizers[0], prepared.original_module
    called: list[Any] = []
    optimizer.register_step_pre_hook(lambda opt, *_: called.append(opt))
    assert (optimizer.grow(), inner.radius, optimizer.radius) == (2.0, 2.0, 2.0)
    optimizer.radius = 3.0
    assert inner.radius == 3.0
    optimizer.state = {net.bias: {"seen": 1}}
    assert inner.state == {net.bias: {"seen": 1}}
    optimizer.param_groups = [{**inner.param_groups[0], "params": [net.bias]}]
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert (net.bias.item(), net.weight.tolist(), called) == (-0.5, [[1, 1]], [inner])
    optimizer.add_param_group({"params": [net.weight], "lr": 1.0})
    optimizer.step()
    assert net.weight.tolist() == [[0, 0]]
    assert repr(optimizer) == repr(inner)


def test_a_closures_first_loss_is_returned() -> None:
    losses = iter([3.0, 2.0])
    assert wrapped(prepare()).step(lambda: next(losses)) == 3.0

    class Twice(SGD):
        def step(self, closure: Any = None) -> None:
            closure()
            closure()

    losses = iter([3.0, 2.0])
    assert (
        wrapped(prepare(Prepared, lambda net: Twice(net.parameters(), lr=1.0))).step(lambda: next(losses))
        == 3.0
    )


def test_gradients_are_completed_before_a_step_and_after_each_evaluation() -> None:
    class Completes(RecordingPrepared):
        def complete_gradients(self, index: int) -> None:
            self.calls.append("complete")

    prepared = prepare(Completes)
    optimizer = wrapped(prepared)
    optimizer.step()
    optimizer.step(lambda: prepared.calls.append("evaluated"))
    assert prepared.calls == ["complete", ("step", 0), ("step", 0), "evaluated", "complete"]
