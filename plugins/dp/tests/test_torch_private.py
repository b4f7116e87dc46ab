"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

from stratagem_dp import torch_private as private
from torch import nn


def test_batch_and_instance_norms_have_the_base():
    for kind in (nn.BatchNorm1d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm2d):
        assert issubclass(kind, private.NORM)


def test_a_copy_has_attributes_and_no_tensors():
    net = nn.BatchNorm1d(2)
    net.compile(backend="eager")
    net.kept = ["this"]
    copy = private.empty_copy(net)
    assert type(copy) is nn.BatchNorm1d
    assert copy.kept is net.kept
    assert not list(copy.parameters())
    assert getattr(copy, "_compiled_call_impl", None) is None
    assert list(net.parameters())
