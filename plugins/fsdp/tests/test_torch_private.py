"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from stratagem_fsdp import torch_private as private
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.utils.checkpoint import checkpoint


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_the_local_tensor_is_the_shard(mesh):
    whole = torch.arange(4.0)
    shard = distribute_tensor(whole, mesh)
    assert torch.equal(private.local_of(shard), whole)
    assert private.local_of(shard).data_ptr() == shard.to_local().data_ptr()
    assert private.local_of(whole) is whole


def test_backward_is_told_while_activations_are_computed_again():
    told = []

    def block(x):
        told.append(private.is_in_backward())
        return x.sin()

    checkpoint(block, torch.ones(1, requires_grad=True), use_reentrant=False).sum().backward()
    assert told == [False, True]
