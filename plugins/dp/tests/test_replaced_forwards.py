"""Copies compute with their own parameters where a module's forward was replaced; or are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from stratagem_dp.replicas import refuse_uncopyable, replicate
from stratagem_sharding.wrap_policy import recompute_activations
from torch import nn

from stratagem.errors import ConfigError

CPU = torch.device("cpu")


def doubled(self: nn.Linear, value: torch.Tensor) -> torch.Tensor:
    return 2 * nn.functional.linear(value, self.weight, self.bias)


def by_method(net: nn.Sequential) -> None:
    net[0].forward = MethodType(doubled, net[0])


def by_tensors(net: nn.Sequential) -> None:
    net[0].forward = partial(nn.functional.linear, weight=net[0].weight, bias=net[0].bias)


def by_recomputing(net: nn.Sequential) -> None:
    recompute_activations(net)


@pytest.mark.parametrize("replace", [by_method, by_tensors, by_recomputing])
def test_a_copy_computes_with_its_own_parameters(replace: Callable[[nn.Sequential], None]) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    replace(net)
    replica: Any = replicate(net, CPU).modules[id(net)]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    value = torch.randn(4, 3)
    assert torch.equal(net(value), torch.zeros(4, 2))
    assert replica(value).abs().sum() > 0
    replica(value).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_function_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].forward = lambda value: value @ net[0].weight
    with pytest.raises(
        ConfigError, match=r"^'0', a Linear, has a function as its forward, which computes with this"
    ):
        refuse_uncopyable(net)
