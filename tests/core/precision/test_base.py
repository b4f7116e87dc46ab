"""Full precision, and what a subclass needn't say of itself."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from stratagem.precision.base import Precision


def test_everything_stays_as_it_is():
    precision, net, batch = Precision(), nn.Linear(1, 1).double(), [torch.ones(1, dtype=torch.float16)]
    assert precision.convert_module(net) is net
    assert net.weight.dtype is torch.float64
    assert precision.convert_input(batch) is batch
    assert precision.converts_input is False
    assert precision.autocast() is None
    loss = torch.ones(())
    assert precision.scale(loss) is loss
    assert (precision.name, precision.scales_loss, precision.steps_directly) == ("32-true", False, True)
    assert (precision.state_dict(), precision.load_state_dict({})) == ({}, None)
    with precision.init_context():
        assert nn.Linear(1, 1).weight.dtype is torch.float32


class Double(Precision):
    param_dtype = torch.float64


def test_a_dtype_converts_modules_and_what_goes_into_them():
    precision, net = Double(), nn.BatchNorm1d(2)
    weight = net.weight
    assert precision.convert_module(net) is net
    assert net.weight is weight
    assert (weight.dtype, net.running_mean.dtype) == (torch.float64, torch.float64)
    assert net.num_batches_tracked.dtype is torch.int64
    whole = torch.ones(1, dtype=torch.int32)
    converted = precision.convert_input((torch.ones(1), whole, "text"))
    assert converted[0].dtype is torch.float64
    assert converted[1:] == (whole, "text")
    assert precision.converts_input is True
    assert precision.steps_directly


def gradient_of_one():
    parameter = nn.Parameter(torch.zeros(()))
    parameter.grad = torch.ones(())
    return parameter, torch.optim.SGD([parameter], lr=0.5)


def test_a_step_is_the_optimizers_own():
    parameter, optimizer = gradient_of_one()
    assert Precision().unscale(optimizer) is None
    assert parameter.grad == 1
    assert Precision().step(optimizer) is True
    assert parameter == -0.5


def test_a_closure_is_stepped():
    net = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(net.parameters())
    evaluations = 0

    def closure():
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = net(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    assert Precision().step(optimizer, closure) is True
    assert evaluations > 1


def test_who_overrides_a_method_is_asked_for_it():
    class Steps(Precision):
        def step(self, optimizer, closure=None):
            return super().step(optimizer, closure)

    class Converts(Precision):
        def convert_input(self, batch):
            return "converted"

    class Contexts(Precision):
        def autocast(self):
            return nullcontext()

    assert [cls().steps_directly for cls in (Steps, Converts, Contexts)] == [False, True, True]
    assert [cls().converts_input for cls in (Steps, Converts, Contexts)] == [False, True, False]
    assert type("Derived", (Steps, Converts), {})().converts_input is True
    assert type("Derived", (Steps,), {})().steps_directly is False


@pytest.mark.parametrize("said", [True, False])
def test_who_says_it_is_believed(said):
    class Says(Precision):
        steps_directly = said
        converts_input = said

        def step(self, optimizer, closure=None):
            return super().step(optimizer, closure)

        def convert_input(self, batch):
            return batch

    assert (Says.steps_directly, Says().converts_input) == (said, said)


def test_a_precision_is_for_any_device_and_changes_no_layer_unless_it_says_otherwise() -> None:
    precision, layer = Precision(), nn.Linear(2, 2)
    assert precision.for_device(torch.device("meta")) is precision
    undo = precision.convert_layers(layer)
    assert type(layer) is nn.Linear
    undo()
