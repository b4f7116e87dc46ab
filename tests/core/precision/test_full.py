"""Precisions that hold everything in one dtype, those of 16 bits among them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stratagem.errors import PrecisionError
from stratagem.precision.base import Precision
from stratagem.precision.full import FullPrecision
from stratagem.precision.true16 import TruePrecision

CPU = torch.device("cpu")
TRUE = [
    (FullPrecision("64-true", CPU), torch.float64),
    (TruePrecision("16-true", CPU), torch.float16),
    (TruePrecision("bf16-true", CPU), torch.bfloat16),
]


class Net(nn.Module):
    """A net that makes tensors of its own, as recurrent ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("angles", torch.polar(torch.ones(2), torch.ones(2)))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inside(batch) + torch.ones(3, 3) @ torch.ones(3)
        return out


def test_single_precision_leaves_everything_alone() -> None:
    precision = FullPrecision("32-true", CPU)
    net, batch = Net().double(), [torch.ones(2, dtype=torch.float16)]
    assert precision.name == "32-true"
    assert precision.convert_module(net).inside.weight.dtype is torch.float64
    assert precision.convert_input(batch) is batch
    assert precision.converts_input is False
    assert precision.autocast() is None
    with precision.init_context():
        assert nn.Linear(1, 1).weight.dtype is torch.float32
    assert precision.state_dict() == {}


@pytest.mark.parametrize(("precision", "dtype"), TRUE)
def test_a_net_runs_in_one_dtype(precision: Precision, dtype: torch.dtype) -> None:
    with precision.init_context():
        made = nn.Linear(2, 2)
    assert made.weight.dtype is dtype
    net = Net()
    weight = net.inside.weight
    assert precision.convert_module(net) is net
    assert net.inside.weight is weight, "parameters must stay the same objects, for optimizers and ties"
    assert net.inside.weight.dtype is dtype
    assert precision.converts_input
    context = precision.autocast()
    assert context is not None
    with context:
        out = net(precision.convert_input(torch.ones(2, 4)))
    assert out.dtype is dtype
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(("precision", "dtype"), TRUE)
def test_integers_and_complex_numbers_are_left_alone(precision: Precision, dtype: torch.dtype) -> None:
    net = Net()
    angles = net.angles.clone()
    precision.convert_module(net)
    assert net.steps.dtype is torch.int64
    assert torch.equal(net.angles, angles)


def test_recurrent_modules_convert() -> None:
    precision = FullPrecision("64-true", CPU)
    lstm = precision.convert_module(nn.LSTM(3, 5))
    out, _ = lstm(torch.ones(2, 1, 3, dtype=torch.float64))
    assert out.dtype is torch.float64


def test_the_default_dtype_comes_back_after_an_error() -> None:
    with pytest.raises(KeyError), FullPrecision("64-true", CPU).init_context():
        raise KeyError
    assert torch.get_default_dtype() is torch.float32


def test_training_in_double_precision_equals_plain_torch() -> None:
    def train(precision: Precision | None) -> torch.Tensor:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        x = torch.randn(8, 4)
        if precision is None:
            net, x = net.double(), x.double()
        else:
            precision.convert_module(net)
            x = precision.convert_input(x)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            if precision is None:
                loss.backward()
                optimizer.step()
            else:
                precision.scale(loss).backward()
                precision.unscale(optimizer)
                assert precision.step(optimizer) is True
        return net.weight.detach()

    assert torch.equal(train(FullPrecision("64-true", CPU)), train(None))


def test_another_name_is_refused() -> None:
    with pytest.raises(PrecisionError, match="'bf16-true' isn't one of 32-true, 64-true"):
        FullPrecision("bf16-true", CPU)
