"""What a loop of one's own calls: modules and optimizers that look like the user's."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from threads import on_threads
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from stratagem.collectives.local import LocalCollectives
from stratagem.errors import ConfigError
from stratagem.plugin.requests import LoopPlan, SetupRequest
from stratagem.precision.base import Precision
from stratagem.runtime.loop import (
    PreparedModule,
    PreparedOptimizer,
    is_of,
    named,
    optimizers_for,
    prepared_of,
    prepared_of_optimizer,
    wrap,
)
from stratagem.runtime.methods import MethodModule
from stratagem.runtime.session import Session
from stratagem.strategies.prepared import Prepared

CPU = torch.device("cpu")
ALONE = LocalCollectives(CPU)
PER_PARAMETER = (lambda net: SGD([net.weight], lr=0.5), lambda net: SGD([net.bias], lr=0.5))


class Net(nn.Linear):
    hint = "an attribute"

    def __init__(self) -> None:
        super().__init__(2, 1)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class Told(Prepared):
    """Notes what is called of it."""

    calls: list[Any]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("forward")
        return super().forward(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("evaluate")
        return self.module(*args, **kwargs)

    def step(self, index: int, closure: Any = None) -> bool:
        self.calls.append(("step", index))
        return super().step(index, closure)

    def zero_grad(self, index: int) -> None:
        self.calls.append(("zero_grad", index))
        super().zero_grad(index)


class Guard:
    def __init__(self) -> None:
        self.steps = 0

    def before_step(self, index: int) -> None:
        pass

    def after_step(self) -> None:
        self.steps += 1


class LiveSession(Session):
    """A session without a run: of what it opens it has the collectives alone."""

    def __init__(self, collectives: Any, steps_alone: bool) -> None:
        self.collectives, self.its_guard = collectives, Guard()
        self.checkpointer: Any = SimpleNamespace(is_async=False, poll=lambda: None)
        self._steps_alone = steps_alone

    @property
    def steps_alone(self) -> bool:
        return self._steps_alone

    def guard(self, prepared: Any) -> Any:
        return self.its_guard


def prepare(cls: Any = Prepared, *makers: Any) -> Any:
    net = Net()
    makers = makers or (lambda net: SGD(net.parameters(), lr=0.5),)
    make = optimizers_for(net, [each(net) for each in makers])
    return cls(SetupRequest(net, net, make, (CPU,), ALONE, Precision(), LoopPlan()))


def session(is_active: bool = False, collectives: Any = ALONE) -> Any:
    return LiveSession(collectives, steps_alone=not is_active and collectives.world_size == 1)


# Modules ------------------------------------------------------------------------------------------------


def test_a_module_calls_the_strategy_and_evaluates_by_it() -> None:
    prepared = prepare(Told)
    module, _ = wrap(prepared, prepared.original_module, session())
    assert isinstance(module, PreparedModule)
    assert module(torch.ones(1, 2)).item() == 2
    module.eval()
    module(input=torch.ones(1, 2))
    assert prepared.calls == ["forward", "evaluate"]


def test_a_module_is_otherwise_the_users() -> None:
    prepared = prepare(Told)
    module, net = PreparedModule(prepared), prepared.original_module
    assert list(module.state_dict()) == ["weight", "bias"]
    assert dict(module.named_parameters()) == dict(net.named_parameters())
    assert (dict(module.named_modules()), list(module.modules())) == ({"": net}, [net])
    state = {"weight": torch.zeros(1, 2), "bias": torch.ones(1)}
    module.load_state_dict(state)
    assert net.bias.item() == 1
    assert (module.hint, module.weight, module.original_module) == ("an attribute", net.weight, net)
    module.hint, module.bias, module.scale = "another", nn.Parameter(torch.ones(1)), 2.0
    assert (net.hint, net.bias.item(), net.scale) == ("another", 1, 2.0)
    assert "scale" not in module.__dict__
    module.eval()
    assert [module.training, net.training] == [False, False]
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name
    # What was prepared is no submodule.
    assert dict(module.named_children()) == {"original_module": net}


def test_a_container_is_indexed_iterated_over_and_copied() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    prepared = Told(SetupRequest(net, net, list, (CPU,), ALONE, Precision(), LoopPlan(False)))
    module = PreparedModule(prepared)
    assert (module[1], list(module), len(module), net[0] in module) == (net[1], list(net), 2, True)
    copied = copy.deepcopy(module)
    assert type(copied) is nn.Sequential
    assert torch.equal(copied[1].weight, net[1].weight)
    assert copied[1].weight is not net[1].weight
    averaged = AveragedModel(module)
    averaged.update_parameters(module)
    assert torch.equal(averaged.module[1].weight, net[1].weight)
    assert bool(PreparedModule(prepare()))
    with pytest.raises(TypeError, match="not subscriptable"):
        PreparedModule(prepare())[0]


# Optimizers ---------------------------------------------------------------------------------------------


def wrapped(prepared: Any, made: Any = None, index: int = 0) -> Any:
    made = made or session(is_active=True)
    return wrap(prepared, prepared.original_module, made)[1][index]


def test_a_step_goes_through_the_strategy_and_the_guard() -> None:
    prepared, made = (
        prepare(Told, lambda net: SGD([net.weight], lr=0.5), lambda net: SGD([net.bias], lr=0.5)),
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
    prepared = prepare(Told)
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
        prepared = prepare(Told)
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
    class Completes(Told):
        def complete_gradients(self, index: int) -> None:
            self.calls.append("complete")

    prepared = prepare(Completes)
    optimizer = wrapped(prepared)
    optimizer.step()
    optimizer.step(lambda: prepared.calls.append("evaluated"))
    assert prepared.calls == ["complete", ("step", 0), ("step", 0), "evaluated", "complete"]


# Wrapping -----------------------------------------------------------------------------------------------


def test_what_can_be_called_directly_is_not_wrapped() -> None:
    prepared = prepare()
    module, optimizers = wrap(prepared, prepared.original_module, session())
    assert module is prepared.original_module
    assert optimizers == list(prepared.optimizers)


def test_optimizers_are_wrapped_where_steps_are_watched_or_shared() -> None:
    assert isinstance(wrapped(prepare(), session(is_active=True)), PreparedOptimizer)
    made = on_threads(2, lambda collectives: type(wrapped(prepare(), session(collectives=collectives))))
    assert made == [PreparedOptimizer] * 2
    assert isinstance(wrapped(prepare(Told), session()), PreparedOptimizer)


def test_modules_are_wrapped_where_a_call_is_not_the_strategys() -> None:
    class Replaced(Prepared):
        def __init__(self, request: Any) -> None:
            super().__init__(request, nn.Sequential(request.module))

    class Forwards(Prepared):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    for cls in (Replaced, Forwards):
        prepared = prepare(cls)
        assert isinstance(wrap(prepared, prepared.original_module, session())[0], PreparedModule)


def test_with_methods_it_is_wrapped_where_a_call_is_the_strategys() -> None:
    for cls, kind in ((Prepared, Net), (Told, PreparedModule)):
        net = Net()
        given = MethodModule(net, ["extra_repr"])
        prepared = cls(SetupRequest(given, net, list, (CPU,), ALONE, Precision(), LoopPlan(False)))
        assert type(wrap(prepared, given, session(), ["extra_repr"])[0]) is kind


def test_optimizers_are_pointed_at_the_parameters_of_today() -> None:
    net, stray = Net(), nn.Parameter(torch.ones(1))
    given = SGD([{"params": [net.weight, stray]}, {"params": [net.bias], "lr": 2.0}], lr=1.0)
    make = optimizers_for(net, [given, lambda module: SGD(module.parameters(), lr=3.0)])
    net.weight, net.bias = nn.Parameter(torch.zeros(1, 2)), nn.Parameter(torch.zeros(1))
    first, second = make()
    assert first is given
    assert [group["params"] for group in first.param_groups] == [[net.weight, stray], [net.bias]]
    assert [group["lr"] for group in first.param_groups] == [1.0, 2.0]
    assert second.param_groups[0]["params"] == [net.weight, net.bias]


# Finding what was prepared ------------------------------------------------------------------------------


def test_what_was_prepared_is_found_by_its_module() -> None:
    first, second = prepare(), prepare()
    both = [first, second]
    for each in both:
        assert prepared_of(both, each.original_module) is each
        assert prepared_of(both, PreparedModule(each)) is each
    assert prepared_of([first], None) is first
    for everything, module, said in (
        (both, None, "^2 modules were set up: pass the one"),
        (both, Net(), "^2 modules were set up: pass the one"),
        ([first], PreparedModule(second), "^1 modules were set up: pass the one"),
        ([], None, r"^no module was set up: call setup\(\) first"),
    ):
        with pytest.raises(ConfigError, match=said):
            prepared_of(everything, module)


def test_what_was_prepared_is_found_by_its_optimizer() -> None:
    both = [prepare(), prepare(Prepared, *PER_PARAMETER)]
    assert prepared_of_optimizer(both, both[1].optimizers[1]) == (both[1], 1)
    assert prepared_of_optimizer(both, both[0].optimizers[0]) == (both[0], 0)
    assert prepared_of_optimizer([], wrapped(both[1], index=1)) == (both[1], 1)
    with pytest.raises(ConfigError, match="an optimizer that wasn't set up"):
        prepared_of_optimizer(both, SGD(Net().parameters(), lr=1.0))


def test_what_is_of_it_is_known_in_either_form() -> None:
    prepared, other = prepare(), prepare()
    own = (prepared.original_module, prepared.optimizers[0], PreparedModule(prepared), wrapped(prepared))
    assert all(is_of([other, prepared], value) for value in own)
    assert not any(is_of([other], value) for value in (*own, 3, None, "model"))


def test_modules_have_the_names_that_the_state_has_for_them() -> None:
    one, other = prepare(), prepare()
    assert named([one], {"model": one.original_module}) == {"": one}
    assert named([one, other], {}) == {"0": one, "1": other}
    state = {
        "critic": PreparedModule(other),
        "optimizer": other.optimizers[0],
        "net": Net(),
        "a.b": one.original_module,
    }
    assert named([one, other], state) == {"0": one, "critic": other}
    with pytest.raises(ConfigError, match=r"no module was set up: call setup\(\) first"):
        named([], state)
