"""Precisions that hold everything in one dtype."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from stratagem.errors import PrecisionError
from stratagem.precision.base import Precision
from stratagem.precision.convert import convert_tensors
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


def test_a_closure_is_stepped() -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(net.parameters())
    evaluations = 0

    def closure() -> torch.Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = net(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    assert FullPrecision("32-true", CPU).step(optimizer, closure) is True
    assert evaluations > 1


def test_another_name_is_refused() -> None:
    with pytest.raises(PrecisionError, match="'8-true' isn't one of 16-true, bf16-true"):
        TruePrecision("8-true", CPU)


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    x: Any
    made: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", self.made + 1)


class Encoding(OrderedDict[str, Any]):
    """A mapping that carries something beside its items."""

    origin = "none"


def test_nested_containers_keep_their_types() -> None:
    x, label = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    encoding = Encoding(x=x)
    encoding.origin = "here"
    lists = defaultdict(list, {"a": [x]})
    batch = [(x, label), Pair(x, "text"), {"a": [x], 1: None}, Sample(x), encoding, lists]
    pair, named, mapping, sample, coded, defaulted = convert_tensors(batch, torch.float64)
    assert isinstance(pair, tuple)
    assert (pair[0].dtype, pair[1]) == (torch.float64, label)
    assert isinstance(named, Pair)
    assert (named.x.dtype, named.y) == (torch.float64, "text")
    assert (mapping["a"][0].dtype, mapping[1]) == (torch.float64, None)
    assert isinstance(sample, Sample)
    assert (sample.x.dtype, sample.made) == (torch.float64, 1)
    assert isinstance(coded, Encoding)
    assert (coded["x"].dtype, coded.origin, encoding["x"]) == (torch.float64, "here", x)
    assert (defaulted["a"][0].dtype, defaulted["new"]) == (torch.float64, [])
    assert x.dtype is torch.float32


def test_what_needs_no_conversion_is_not_copied() -> None:
    label = torch.zeros(2, dtype=torch.int64)
    batch = [(label, torch.ones(2, dtype=torch.float64)), Pair(label, 1), {"a": label}, Sample(label), "text"]
    assert convert_tensors(batch, torch.float64) is batch
