"""What the user gave parameters is on those that replace them, or the strategy is refused."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

from stratagem import CombinationError, ConfigError
from stratagem.strategies import ParameterLedger


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight  # tied
        self.first.bias.no_decay = True
        self.last.bias.requires_grad_(False)
        self.decayed = [self.first.weight]
        self.by_name = {"biases": (self.first.bias, [self.last.bias])}
        self.calls: list[str] = []
        self.handle = self.first.weight.register_hook(lambda grad: 2 * grad)
        self.first.bias.register_post_accumulate_grad_hook(lambda parameter: self.calls.append("bias"))


def replace_all(net: Net) -> None:
    """As a strategy does that keeps nothing but values."""
    weight = nn.Parameter(net.first.weight.detach().clone())
    net.first.weight = net.last.weight = weight
    for layer in (net.first, net.last):
        layer.bias = nn.Parameter(layer.bias.detach().clone())


def test_what_was_on_a_parameter_is_on_the_one_that_replaces_it() -> None:
    net = Net()
    ledger = ParameterLedger(net, 1)
    replace_all(net)
    ledger.carry_over()
    ledger.carry_over()
    assert net.first.bias.no_decay
    assert not net.last.bias.requires_grad
    assert net.decayed[0] is net.first.weight
    assert net.by_name["biases"][0] is net.first.bias
    assert net.by_name["biases"][1][0] is net.last.bias
    net.first(torch.ones(1, 3)).sum().backward()
    assert net.calls == ["bias"]
    assert torch.equal(net.first.weight.grad, torch.full((3, 3), 2.0))
    net.handle.remove()
    net.first.weight.grad = None
    net.first(torch.ones(1, 3)).sum().backward()
    assert torch.equal(net.first.weight.grad, torch.ones(3, 3))
    ledger.check(carries_hooks=False)


def test_optimizers_get_the_parameters_of_today() -> None:
    net = Net()
    ledger = ParameterLedger(net, 2)
    kept = [net.first.weight, net.first.bias]
    replace_all(net)
    optimizer = torch.optim.SGD(kept, lr=0.1)
    ledger.claim([optimizer])
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(net.first.weight), id(net.first.bias)]


def test_an_optimizers_state_goes_to_the_parameters_of_today() -> None:
    """Of an optimizer that has stepped before, or whose class fills its state when it is made, as Adagrad."""
    net = Net()
    optimizer = torch.optim.Adagrad([net.first.weight, net.first.bias], lr=0.1)
    net.first(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    sums = [optimizer.state[p]["sum"].clone() for p in (net.first.weight, net.first.bias)]
    assert all(bool(each.any()) for each in sums)
    ledger = ParameterLedger(net, 2)
    replace_all(net)
    ledger.claim([optimizer])
    assert set(optimizer.state) == {net.first.weight, net.first.bias}
    for parameter, expected in zip((net.first.weight, net.first.bias), sums):
        assert torch.equal(optimizer.state[parameter]["sum"], expected)


def test_what_an_optimizer_keeps_apart_from_its_groups_is_of_today() -> None:
    """LBFGS keeps the list of its group's parameters; others have lists, and dicts by names, of their own."""
    net = Net()
    lbfgs = torch.optim.LBFGS(net.parameters())
    named = torch.optim.SGD(net.parameters(), lr=1.0)
    named.by_name = dict(net.named_parameters())  # type: ignore[attr-defined]  # a user's own class has it
    ledger = ParameterLedger(net, 1)
    replace_all(net)
    ledger.carry_over()
    ledger.claim([lbfgs, named])
    own = {id(parameter) for parameter in net.parameters()}
    assert {id(parameter) for parameter in lbfgs._params} == own
    assert {id(parameter) for parameter in named.by_name.values()} == own  # type: ignore[attr-defined]  # as above


def test_a_tensor_that_belongs_to_no_parameter_is_refused_in_several_processes() -> None:
    net = Net()
    optimizer = torch.optim.SGD([net.first.weight, nn.Parameter(torch.ones(7))], lr=0.1)
    ParameterLedger(net, 1).claim([optimizer])
    with pytest.raises(
        ConfigError, match=r"SGD steps a tensor of shape \(7,\) that isn't a parameter of Net"
    ):
        ParameterLedger(net, 2).claim([optimizer])


def untie(net: Net) -> None:
    net.last.weight = nn.Parameter(net.last.weight.detach().clone())


def thaw(net: Net) -> None:
    net.last.bias.requires_grad_(True)


def drop(net: Net) -> None:
    net.last.register_parameter("bias", None)


def clear(net: Net) -> None:
    del net.first.bias.no_decay


def shard(net: Net) -> None:
    class Shards(nn.Parameter):
        placements = ()

    net.first.weight = net.last.weight = Shards(net.first.weight.detach())


def flatten(net: Net) -> None:
    """As engines do that keep shards as plain tensors."""
    net.first.weight = net.last.weight = nn.Parameter(net.first.weight.detach().flatten())


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (untie, r"'last\.weight' of Net, which has lost its tie to 'first\.weight'"),
        (thaw, r"'last\.bias' of Net, which has lost requires_grad=False"),
        (drop, r"'last\.bias' of Net, which has lost its place in the module"),
        (clear, r"'first\.bias' of Net, which has lost its attribute 'no_decay'"),
        (shard, r"'first\.weight' of Net, which has lost its hooks"),
        (flatten, r"'first\.weight' of Net, which has lost its hooks"),
    ],
)
def test_what_is_lost_is_refused_by_name(lose: Any, words: str) -> None:
    net = Net()
    ledger = ParameterLedger(net, 2)
    lose(net)
    with pytest.raises(CombinationError, match=words):
        ledger.check(carries_hooks=False)


def test_replaced_parameters_are_freed() -> None:
    net = nn.Linear(3, 3)
    before = ref(net.weight)
    ledger = ParameterLedger(net, 1)
    net.weight = nn.Parameter(torch.ones(3, 3))
    gc.collect()
    assert before() is None
    ledger.carry_over()
