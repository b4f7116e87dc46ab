"""Every call of what was prepared is handed on, and every attribute is the wrapped one's as it is now."""

import copy
import pickle

import pytest
import torch
from torch import nn

from stratagem.collectives.local import LocalCollectives
from stratagem.plugin.requests import Clipping, SetupRequest
from stratagem.precision.base import Precision
from stratagem.strategies.prepared import Prepared
from stratagem.strategies.wrapper import PreparedWrapper

CPU = torch.device("cpu")


@pytest.fixture
def inner():
    net = nn.Linear(2, 1)
    return Prepared(
        SetupRequest(
            net,
            net,
            lambda: [torch.optim.SGD(net.parameters(), lr=0.5)],
            (CPU,),
            LocalCollectives(CPU),
            Precision(),
        )
    )


def test_a_wrapped_step_is_the_step_of_the_wrapped(inner):
    wrapper = PreparedWrapper(PreparedWrapper(inner))
    before = inner.original_module.weight.detach().clone()
    loss = wrapper.forward(torch.ones(1, 2)).sum()
    wrapper.backward(loss)
    assert wrapper.clip(0, Clipping(max_norm=1.0)) > 1
    assert wrapper.step(0) is True
    assert not torch.equal(inner.original_module.weight, before)
    wrapper.zero_grad(0)
    assert inner.original_module.weight.grad is None


def test_attributes_are_those_of_the_wrapped_as_they_are_now(inner):
    wrapper = PreparedWrapper(inner)
    assert wrapper.original_module is wrapper.module is inner.original_module
    assert (wrapper.device, wrapper.precision) == (CPU, inner.precision)
    assert wrapper.leaves_module_sharded is False
    inner.optimizers, inner.leaves_module_sharded = ("others",), True
    assert (wrapper.optimizers, wrapper.leaves_module_sharded) == (("others",), True)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = wrapper.no_such_name


def test_a_subclass_changes_what_the_loop_calls_and_not_what_the_wrapped_calls_itself(inner):
    class Doubles(PreparedWrapper):
        backwards = 0

        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs) * 2

        def backward(self, *args, **kwargs):
            self.backwards += 1
            super().backward(*args, **kwargs)

    wrapper, batch = Doubles(inner), torch.ones(1, 2)
    output = inner.forward(batch)
    assert torch.equal(wrapper.forward(batch), output * 2)
    inner.original_module.forward = lambda batch: nn.functional.linear(
        batch, inner.original_module.weight
    ).sum()
    wrapper.forward_backward(batch)
    assert wrapper.backwards == 0
    wrapper.backward(inner.forward(batch))
    assert wrapper.backwards == 1


def test_it_can_be_copied_and_has_no_inner_while_it_is_made(inner):
    wrapper = PreparedWrapper(inner)
    assert copy.copy(wrapper).inner is inner
    with pytest.raises(AttributeError, match=r"^inner$"):
        _ = PreparedWrapper.__new__(PreparedWrapper).inner
    again = pickle.loads(pickle.dumps(PreparedWrapper(Precision())))
    assert again.name == "32-true"
