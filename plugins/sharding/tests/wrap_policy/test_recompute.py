"""Recomputed activations: the numbers of a plain forward, or a refusal."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from stratagem_sharding.wrap_policy import recompute_activations
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from stratagem.errors import ConfigError


class Block(nn.Module):
    """Draws random numbers and keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 12), nn.BatchNorm1d(12)
        self.drop, self.second = nn.Dropout(0.3), nn.Linear(12, 6)

    def forward(self, value: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return value + scale * self.second(self.drop(torch.relu(self.norm(self.first(value)))))


class Counting(nn.Module):
    """Changes a buffer that its result depends on."""

    calls: torch.Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        return value * self.calls


def blocks() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(Block(), Block())


def train(net: nn.Module, backwards: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.randn(5, 6)).square().mean()
        for left in reversed(range(backwards)):
            loss.backward(retain_graph=left > 0)
        optimizer.step()
    return {name: value.clone() for name, value in net.state_dict().items()}


def expect_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name, value in one.items() if not torch.equal(value, other[name])] == []


@pytest.mark.parametrize("backwards", [1, 2])
def test_every_parameter_and_buffer_has_the_bits_of_a_plain_forward(backwards: int) -> None:
    net = blocks()
    recompute_activations(net)
    expect_same(train(net, backwards), train(blocks(), backwards))


def test_only_the_inputs_of_the_blocks_are_saved() -> None:
    saved: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    plain, net = blocks(), blocks()
    recompute_activations(net)
    with saved_tensors_hooks(note, lambda tensor: tensor):
        plain(torch.randn(5, 6))
        assert sum(saved) > 500
        saved.clear()
        net(torch.randn(5, 6))
    assert sum(saved) == 2 * 5 * 6


def test_a_copy_computes_with_its_own_parameters() -> None:
    net = blocks()
    recompute_activations(net)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    value = torch.randn(5, 6)
    assert torch.equal(twin.eval()(value), value)
    assert not torch.equal(net.eval()(value), value)


def test_the_forward_shows_its_arguments() -> None:
    net = blocks()
    recompute_activations(net)
    assert list(inspect.signature(net[0].forward).parameters) == ["value", "scale"]


def test_a_forward_without_gradients_is_a_plain_one() -> None:
    net = blocks().eval()
    recompute_activations(net)
    value = torch.randn(5, 6)
    with torch.no_grad():
        assert torch.equal(net(value), blocks().eval()(value))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_changed_buffer_is_refused(in_place: bool) -> None:
    net = nn.Sequential(nn.Linear(6, 6), Counting(in_place))
    recompute_activations(net)
    with pytest.raises(
        ConfigError, match=r"^the forward of Counting changes its buffer 'calls', and recomputing"
    ):
        net(torch.randn(5, 6))


def test_recomputing_twice_is_refused() -> None:
    net = blocks()
    recompute_activations(net)
    with pytest.raises(
        ConfigError, match=r"^activations of Block are recomputed twice: name its class in one"
    ):
        recompute_activations(net)
