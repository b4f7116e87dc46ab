"""An optimizer is tried on small stand-ins, and is afterwards as it was."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from all_optimizers import OwnGlobalNorm, OwnRowNorm, OwnSign
from stratagem_sharding.optimizer_trial import why_not
from torch import nn
from torch.optim import Optimizer
from whole_optimizers import Sharpness

from stratagem.sdk.shards import CUTS, Cut
from tests.parity.hands_on_rows import Ahead, Counting, Swapping


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Conv2d(4, 6, 3))


ELEMENTWISE: list[Any] = [
    lambda p: torch.optim.AdamW(p, lr=1e-6, fused=True),
    lambda p: torch.optim.Rprop(p),
    lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9),
    OwnSign,
]


@pytest.mark.parametrize("make", ELEMENTWISE)
def test_elementwise_optimizers_step_any_shards(make: Any) -> None:
    assert why_not(make(net().parameters()), CUTS) is None


class StatesMadeAtOnce(Optimizer):
    """As torch 2.9's Adagrad, and a user's own: states are the constructor's, not the first step's."""

    def __init__(self, params: Any, start: float = 0.5, over_rows: bool = False) -> None:
        super().__init__(params, {"start": start})
        self.over_rows = over_rows
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"step": torch.zeros(()), "sum": torch.full_like(p, start)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for p in group["params"]:
                state, grad = self.state[p], p.grad
                state["step"] += 1
                square = grad.square()
                state["sum"] += square.mean() if self.over_rows else square
                p.addcdiv_(grad, state["sum"].sqrt(), value=-0.1 / float(state["step"]))


def test_states_of_the_constructor_are_there_in_the_trial() -> None:
    scalar = nn.Parameter(torch.ones(()))
    assert why_not(StatesMadeAtOnce([scalar, *net().parameters()]), CUTS) is None
    assert why_not(StatesMadeAtOnce([scalar]), ["flat"]) is None
    reported = why_not(StatesMadeAtOnce(net().parameters(), over_rows=True), ["flat"])
    assert "it needs whole tensors" in str(reported)


class Late(Optimizer):
    """Treats each element by itself at first, and in small tensors."""

    def __init__(self, params: Any, from_step: int = 0, min_side: int = 0, counts_in: str = "state") -> None:
        super().__init__(params, {"count": 0})
        self.from_step, self.min_side, self.counts_in, self.count = from_step, min_side, counts_in, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        self.count += 1
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                counted = {"state": state["count"], "group": group["count"], "self": self.count}[
                    self.counts_in
                ]
                mixes = counted >= self.from_step and p.dim() > 1 and p.shape[-1] >= self.min_side
                p.sub_(0.1 * p.grad / (p.grad.norm() if mixes else 1.0))


class Strange(Late):
    def step(self, inputs: Any) -> None:  # type: ignore[override]  # takes no closure, on purpose
        inputs.backward()


def test_a_count_alone_mixes_nothing() -> None:
    assert why_not(Late(net().parameters(), from_step=10**9), ["rows"]) is None


NEEDY: list[tuple[Any, Cut, str]] = [
    (lambda p: torch.optim.Adafactor(p), "rows", "it needs whole tensors: given rows"),
    (lambda p: torch.optim.Adafactor(p), "flat", "it needs whole tensors: given flattened shards"),
    (
        lambda p: torch.optim.Muon([each for each in p if each.dim() == 2]),
        "columns",
        "it needs whole tensors",
    ),
    (lambda p: OwnRowNorm(p), "rows", "it needs whole tensors"),
    (
        lambda p: OwnGlobalNorm(p, lr=0.1),
        "parameters",
        "it needs all parameters at once: given some parameters",
    ),
    # Tried with a closure, without which it can't step.
    (lambda p: torch.optim.LBFGS(p), "rows", "it needs whole tensors: given rows"),
    # A search along a line moves nothing where the loss stays as it is.
    (
        lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe"),
        "rows",
        "it needs whole tensors: given rows",
    ),
    # What it mixes is where the second gradient is taken.
    (lambda p: Sharpness(torch.optim.SGD(p, lr=0.1)), "parameters", "it needs all parameters at once"),
    (lambda p: Late(p, from_step=5), "rows", "it came to other numbers in step 5"),
    (lambda p: Late(p, from_step=900), "rows", "it came to other numbers in step 1024"),
    (lambda p: Late(p, from_step=900, counts_in="group"), "rows", "it came to other numbers in step 1024"),
    (lambda p: Late(p, from_step=900, counts_in="self"), "rows", "it came to other numbers in step 1024"),
    (lambda p: Late([nn.Parameter(torch.ones(200, 100))], min_side=64), "rows", "it needs whole tensors"),
    (lambda p: Strange(p), "rows", "couldn't be tried on small tensors (TypeError"),
]


@pytest.mark.parametrize(("make", "cut", "reason"), NEEDY)
def test_others_say_why_not(make: Any, cut: Cut, reason: str) -> None:
    assert reason in str(why_not(make(net().parameters()), [cut]))


class Rated(Optimizer):
    """Its rate has another name than torch's."""

    def __init__(self, params: Any, rate: float = 0.1) -> None:
        super().__init__(params, {"rate": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["rate"] * p.grad)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_schedule_that_warms_up_from_zero_hides_nothing(rate: Any) -> None:
    """Its first rate is 0, with which no optimizer moves anything, whatever it would mix."""
    optimizer = OwnGlobalNorm(net().parameters(), lr=rate)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    assert not float(optimizer.param_groups[0]["lr"])
    assert "it needs all parameters at once" in str(why_not(optimizer, ["parameters"]))
    assert not float(optimizer.param_groups[0]["lr"])
    assert why_not(torch.optim.SGD(net().parameters(), lr=0.0, momentum=0.9), CUTS) is None


def test_what_leaves_parameters_as_they_are_isnt_tried() -> None:
    assert why_not(Rated(net().parameters()), CUTS) is None
    assert "it left some of them as they were" in str(why_not(Rated(net().parameters(), rate=0.0), CUTS))


class Standardized(Optimizer):
    """Divides by a deviation, which is NaN of a single row."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for p in group["params"]:
                variance = (p.grad - p.grad.mean(0)).square().sum(0) / (len(p) - 1)
                p.sub_(group["lr"] * p.grad / variance.sqrt())


class Warmed(torch.optim.SGD):
    """Counts on a rate by itself, which depends on no gradient."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= 1.1
        return super().step(closure)


class Rarely(torch.optim.SGD):
    """Mixes elements where gradients are smaller than any of the trial's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if float(p.grad.norm()) < 1e-30:
                    p.grad.sub_(p.grad.mean())
        return super().step(closure)


class Growing(torch.optim.SGD):
    """Its rate grows by a fiftieth at most, which is always so at first."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        total = sum(float(p.grad.norm()) for group in self.param_groups for p in group["params"])
        for group in self.param_groups:
            group["lr"] *= 1 + min(0.02, total)
        return super().step(closure)


def reason(make: Any, *cuts: Cut) -> str:
    return str(why_not(make([nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(8))]), cuts))


def test_numbers_that_are_none_agree_with_nothing() -> None:
    of_two_rows = Standardized([nn.Parameter(torch.randn(2, 6))])
    assert "came to other numbers in step 1" in str(why_not(of_two_rows, ["rows"]))


def test_what_mixes_elements_by_values_alone_is_seen_by_its_operations() -> None:
    """Whether it does depends on gradients, and those of the trial may be none of them."""
    assert "of one was computed in a trial" in reason(lambda p: Rarely(p, lr=0.1), "rows")
    assert reason(lambda p: Rarely(p, lr=0.1), "parameters") == "None"


class Centered(torch.optim.SGD):
    """Takes the mean of each row away, or of each column."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    p.grad.sub_(p.grad.mean(self.dim, keepdim=True))
        return super().step(closure)

    dim = 1


class CenteredSums(Centered):
    dim = 0


def test_rows_that_a_step_looks_at_one_by_one_may_be_apart() -> None:
    assert reason(lambda p: Centered(p, lr=0.1), "rows") == "None"
    assert reason(lambda p: Centered(p, lr=0.1), "columns") != "None"
    assert reason(lambda p: CenteredSums(p, lr=0.1), "rows") != "None"


def test_a_number_of_all_parameters_that_gradients_change() -> None:
    """Its growth is limited, so that it is the same at first, whatever some of the parameters do."""
    assert "its steps change 'lr' of all by their values" in reason(
        lambda p: Growing(p, lr=0.1), "parameters"
    )
    assert reason(lambda p: Warmed(p, lr=0.1), "parameters", "rows") == "None"


def test_parameters_that_are_changed_before_the_closure() -> None:
    assert "changes them before its closure" in reason(lambda p: Ahead(p, lr=0.1, momentum=0.9), "parameters")
    assert reason(lambda p: Ahead(p, lr=0.1, momentum=0.9), "rows") == "None"


def test_states_of_no_parameter_are_none_for_flat_shards() -> None:
    assert "it has states of no parameter" in reason(Counting, "flat")
    assert reason(Counting, "rows", "columns", "parameters") == "None"


def test_an_optimizer_whose_train_has_to_be_called_first() -> None:
    class Strict(Swapping):
        def step(self, closure: Any = None) -> None:
            assert self.is_training, "call train() first"
            super().step(closure)

        is_training = False

        def train(self) -> None:
            self.is_training = True

    assert reason(Strict, "rows") == "None"


class Noisy(OwnGlobalNorm):
    """Adds noise to its steps."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
        return super().step(closure)


def test_random_numbers_are_other_ones_on_each_rank() -> None:
    """All ranks would step all parameters, each with its own noise."""
    assert "it draws random numbers" in reason(lambda p: Noisy(p, lr=0.1))


def test_without_cuts_it_is_only_tried() -> None:
    assert why_not(OwnGlobalNorm(net().parameters(), lr=0.1), []) is None
    assert "couldn't be tried" in str(why_not(Strange(net().parameters()), []))


@pytest.mark.parametrize("make", [torch.optim.Adafactor, OwnRowNorm])
def test_whole_parameters_are_enough_for_those_that_look_at_one_at_a_time(make: Any) -> None:
    assert why_not(make(net().parameters()), ["parameters"]) is None


def test_nothing_is_changed() -> None:
    module = net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    module[1](module[0](torch.randn(2, 20))).sum().backward()
    optimizer.step()
    calls: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    before = deepcopy(module.state_dict()), deepcopy(optimizer.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    assert why_not(optimizer, CUTS) is None
    assert calls == []
    assert torch.equal(generators[0], torch.get_rng_state())
    assert generators[1] == random.getstate()
    assert (generators[2] == np.random.get_state()[1]).all()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[0][name])
    for mine, theirs in zip(optimizer.state_dict()["state"].values(), before[1]["state"].values()):
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    for parameter, grad in zip(module.parameters(), grads):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)


class Keeps(Optimizer):
    """Has attributes that the base class doesn't pickle, and a scheduler that wraps its `step`."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.factor = torch.tensor(0.5)
        self.mine = [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        assert all(any(p is each for each in self.mine) for p in self.param_groups[0]["params"][:1])
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.factor * p.grad)


def test_attributes_of_a_users_optimizer_and_schedulers() -> None:
    optimizer = Keeps(net().parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert why_not(optimizer, CUTS) is None


class Says(OwnRowNorm):
    steps_elementwise = True


class SaysNot(OwnSign):
    steps_elementwise = False


def test_a_class_may_say_it_itself() -> None:
    assert why_not(Says(net().parameters()), CUTS) is None
    assert why_not(SaysNot(net().parameters()), CUTS) == "it says so itself (steps_elementwise = False)"
    assert why_not(SaysNot(net().parameters()), ("parameters",)) is None


def test_groups_that_differ_in_a_flag_are_all_tried() -> None:
    class Mixed(OwnSign):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(0.1 * p.grad / p.grad.norm() if group["whole"] else 0.1 * p.grad)

    weights = list(net()[0].parameters())
    groups = [{"params": weights[:1], "whole": False}, {"params": weights[1:], "whole": True}]
    assert why_not(Mixed(groups[:1]), CUTS) is None
    assert why_not(Mixed(groups), CUTS) is not None
