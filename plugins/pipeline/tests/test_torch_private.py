"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

import warnings

import pytest
import torch
from stratagem_pipeline import torch_private as private
from torch import nn
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.utils.hooks import RemovableHandle


def test_batch_norms_have_the_base():
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        assert issubclass(kind, private.BATCH_NORM)


def test_leaves_come_in_order():
    assert private.leaves(({"a": 1}, [2, (3,)])) == [1, 2, 3]


def test_a_split_point_keeps_its_forward_until_it_is_forgotten():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline(net, (torch.ones(1, 2),), split_spec={"1": SplitPoint.BEGINNING})
    assert private.KEPT_FORWARD in vars(net[1]), "torch removes it now: our code doesn't have to"
    private.forget_split_point(net[1])
    assert private.KEPT_FORWARD not in vars(net[1])


def test_views_are_reported():
    tensor = torch.ones(2)
    assert private.is_view(tensor[:1])
    assert not private.is_view(tensor)


def test_a_call_of_its_own_takes_the_place_of_a_module_and_of_its_hooks() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: pytest.fail("it was called with hooks"))
    assert private.own_call(layer) is None
    private.set_own_call(layer, lambda x: x + 1)
    assert layer(1) == 2
    private.set_own_call(layer, None)
    assert private.own_call(layer) is None
    layer.compile(backend="eager")
    assert private.own_call(layer) is not None


def test_forward_hooks_are_found_by_their_numbers() -> None:
    layer = nn.Linear(2, 2)
    first = RemovableHandle.next_id
    assert private.forward_hooks(layer) == private.forward_pre_hooks(layer) == []
    layer.register_forward_hook(lambda *_: None)
    layer.register_forward_pre_hook(lambda *_: None)
    assert private.forward_hooks(layer) == [first]
    assert private.forward_pre_hooks(layer) == [first + 1]
