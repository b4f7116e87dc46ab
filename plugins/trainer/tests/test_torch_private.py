"""Torch still has what the trainer uses of its private names, with the same meaning."""

from __future__ import annotations

import torch
from stratagem_trainer import torch_private as private
from torch import nn


def test_a_copy_has_the_structure_and_no_values():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    net[0].register_forward_hook(lambda *_: 1 / 0)
    copy = private.without_values(net, {})
    assert type(copy[1]) is nn.BatchNorm1d
    assert copy(torch.empty(4, 3, device="meta")).shape == (4, 2)
    assert {value.device.type for value in copy.state_dict().values()} == {"meta"}
    assert {value.device.type for value in net.state_dict().values()} == {"cpu"}


def test_a_child_is_the_attribute():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert private.child(net, "1") is net[1]
    net.add_module("1", nn.ReLU())
    assert private.child(net, "1") is getattr(net, "1")
