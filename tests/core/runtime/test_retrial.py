"""An optimizer is tried on shards again when a setting was switched, and not when a rate moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from stratagem.errors import CombinationError
from stratagem.runtime.retrial import Retrial, as_set_up


def tried(optimizer: SGD) -> tuple[Retrial, list[str]]:
    trials: list[str] = []
    return Retrial(optimizer, optimizer, as_set_up(optimizer), lambda _: trials.append("tried")), trials


@pytest.mark.parametrize(
    ("name", "value"), [("centralize", True), ("nesterov", True), ("momentum", 0.0), ("lr", float("inf"))]
)
def test_a_setting_that_is_switched_leads_to_one_trial(name: str, value: object) -> None:
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    retrial, trials = tried(optimizer)
    retrial.before_step()
    assert not trials
    optimizer.param_groups[0][name] = value
    retrial.before_step()
    retrial.before_step()
    assert trials == ["tried"]


def test_an_attribute_of_the_optimizer_counts_too() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    retrial, trials = tried(optimizer)
    optimizer.centralize = True  # type: ignore[attr-defined]  # an attribute of the user's
    retrial.before_step()
    assert trials == ["tried"]


def test_rates_that_move_and_states_that_grow_lead_to_none() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = SGD([parameter], lr=0.1, momentum=0.9)
    retrial, trials = tried(optimizer)
    for rate in (0.05, 0.01):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.ones(2)
        optimizer.step()
        retrial.before_step()
    assert not trials


class CountsElements(SGD):
    """Has attributes that its first step sets, as LBFGS has, and one for its user."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.number_of_elements: int | None = None
        self.is_centered = False

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without a loss
        size = sum(p.numel() for group in self.param_groups for p in group["params"])
        self.number_of_elements = self.number_of_elements or size
        assert size == self.number_of_elements
        self.has_stepped = True


def test_attributes_that_a_step_sets_are_no_settings() -> None:
    optimizer = CountsElements([nn.Parameter(torch.ones(2))])
    tried: list[Optimizer] = []
    retrial = Retrial(optimizer, optimizer, as_set_up(optimizer), tried.append)
    for _ in range(2):
        retrial.before_step()
        optimizer.step()
        retrial.after_step()
    assert not tried
    optimizer.is_centered = True
    retrial.before_step()
    (made,) = tried
    assert isinstance(made, CountsElements)
    assert (made.is_centered, made.number_of_elements, hasattr(made, "has_stepped")) == (True, None, False)


def test_an_attribute_that_a_step_has_set_is_a_setting_once_the_user_sets_it() -> None:
    optimizer = CountsElements([nn.Parameter(torch.ones(2))])
    tried: list[Optimizer] = []
    retrial = Retrial(optimizer, optimizer, as_set_up(optimizer), tried.append)
    optimizer.step()
    retrial.after_step()
    optimizer.has_stepped = False
    retrial.before_step()
    (made,) = tried
    assert isinstance(made, CountsElements)
    assert made.has_stepped is False


def test_a_refusal_reaches_the_caller() -> None:
    def refuse(_: Optimizer) -> None:
        raise CombinationError("it needs whole tensors")

    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    retrial = Retrial(optimizer, optimizer, as_set_up(optimizer), refuse)
    optimizer.param_groups[0]["maximize"] = True
    with pytest.raises(CombinationError, match="whole tensors"):
        retrial.before_step()


def test_what_is_tried_has_the_shapes_of_setup_and_the_settings_of_today() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(3, 2))], lr=0.1)
    tried: list[Optimizer] = []
    retrial = Retrial(optimizer, optimizer, as_set_up(optimizer), tried.append)
    optimizer.param_groups[0]["params"] = [nn.Parameter(torch.ones(6))]  # as an engine does
    optimizer.param_groups[0]["nesterov"] = True
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(5))]})
    retrial.before_step()
    (made,) = tried
    assert type(made) is SGD
    assert [tuple(p.shape) for group in made.param_groups for p in group["params"]] == [(3, 2), (5,)]
    assert made.param_groups[0]["nesterov"] is True
    assert optimizer.param_groups[0]["params"][0].shape == (6,)


class Wrapper(Optimizer):
    """Lets another one step, and keeps a list that its first step makes."""

    def __init__(self, base: Optimizer) -> None:
        self.base, self.calls, self.means = base, 0, None
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # torch's returns a loss
        self.calls += 1
        self.means = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.base.step()


def test_what_is_tried_is_of_setup_where_steps_have_made_something() -> None:
    """A wrapped optimizer has the wrapper's groups, and nothing has tensors of the shapes of today."""
    parameter = nn.Parameter(torch.ones(3, 2))
    optimizer = Wrapper(SGD([parameter], lr=0.1))
    tried: list[Optimizer] = []
    retrial = Retrial(optimizer, optimizer, as_set_up(optimizer), tried.append)
    parameter.grad = torch.ones(3, 2)
    optimizer.step()
    retrial.before_step()
    (made,) = tried
    assert isinstance(made, Wrapper)
    assert (made.calls, made.means) == (1, None)
    assert made.base is not optimizer.base
    assert made.base.param_groups[0] is made.param_groups[0]
    assert made.param_groups[0]["params"][0].is_meta


def centralize(grad: torch.Tensor) -> torch.Tensor:
    return grad - grad.mean()


@pytest.mark.parametrize("value", [centralize, ["centralize"], {"centralize": True}])
def test_what_is_tried_has_functions_and_lists_of_today(value: object) -> None:
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.change = None  # type: ignore[attr-defined]  # an attribute of the user's
    tried: list[Optimizer] = []
    retrial = Retrial(optimizer, optimizer, as_set_up(optimizer), tried.append)
    optimizer.change = value  # type: ignore[attr-defined]  # as above
    retrial.before_step()
    (made,) = tried
    assert made.change == value  # type: ignore[attr-defined]  # as above


def test_what_is_tried_has_the_shapes_of_setup_where_shards_have_one_element() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(4))], lr=0.1)
    tried: list[Optimizer] = []
    retrial = Retrial(optimizer, optimizer, as_set_up(optimizer), tried.append)
    optimizer.param_groups[0]["params"] = [nn.Parameter(torch.ones(1))]
    optimizer.param_groups[0]["nesterov"] = True
    retrial.before_step()
    (made,) = tried
    assert made.param_groups[0]["params"][0].shape == (4,)
