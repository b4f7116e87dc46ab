"""What a loop of one's own calls: modules and optimizers that look like the user's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from prepared_objects import ALONE, CPU, PER_PARAMETER, Net, RecordingPrepared, prepare, session, wrapped
from threads import on_threads
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

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
from stratagem.strategies.prepared import Prepared

# Modules ------------------------------------------------------------------------------------------------


def test_a_module_calls_the_strategy_and_evaluates_by_it() -> None:
    prepared = prepare(RecordingPrepared)
    module, _ = wrap(prepared, prepared.original_module, session())
    assert isinstance(module, PreparedModule)
    assert module(torch.ones(1, 2)).item() == 2
    module.eval()
    module(input=torch.ones(1, 2))
    assert prepared.calls == ["forward", "evaluate"]


def test_a_module_is_otherwise_the_users() -> None:
    prepared = prepare(RecordingPrepared)
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
    prepared = RecordingPrepared(SetupRequest(net, net, list, (CPU,), ALONE, Precision(), LoopPlan(False)))
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
    assert isinstance(wrapped(prepare(RecordingPrepared), session()), PreparedOptimizer)


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
    for cls, kind in ((Prepared, Net), (RecordingPrepared, PreparedModule)):
        net = Net()
        given = MethodModule(net, ["extra_repr"])
        prepared = cls(SetupRequest(given, net, list, (CPU,), ALONE, Precision(), LoopPlan(False)))
        assert type(wrap(prepared, given, session(), ["extra_repr"])[0]) is kind


def test_optimizers_are_pointed_at_the_parameters_of_today() -> None:
    net, stray = Net(), nn.Parameter(torch.ones(1))
    given = SGD([{"params": [net.weight, stray]}, {"params": [net.bias], "lr": 2.0}], lr=1.0)
    lists = [group["params"] for group in given.param_groups]
    make = optimizers_for(net, [given, lambda module: SGD(module.parameters(), lr=3.0)])
    net.weight, net.bias = nn.Parameter(torch.zeros(1, 2)), nn.Parameter(torch.zeros(1))
    first, second = make()
    assert first is given
    assert all(
        group["params"] is kept for group, kept in zip(given.param_groups, lists)
    )  # LBFGS keeps it, too
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
        (both, None, "^2 modules were set up: pass the module"),
        (both, Net(), "^2 modules were set up: pass the module"),
        ([first], PreparedModule(second), "^1 modules were set up: pass the module"),
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
