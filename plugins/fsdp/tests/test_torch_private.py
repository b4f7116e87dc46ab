"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from stratagem_fsdp import torch_private as private
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
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


def test_backward_is_detected_during_recomputation():
    reported = []

    def block(x):
        reported.append(private.is_in_backward())
        return x.sin()

    checkpoint(block, torch.ones(1, requires_grad=True), use_reentrant=False).sum().backward()
    assert reported == [False, True]


def test_gradients_of_gathered_copies_are_found_reduced_and_dropped(mesh):
    net = fully_shard(nn.Linear(3, 2), mesh=mesh)
    (group,) = private.reduced_groups(net)
    net.set_requires_gradient_sync(False)
    for _ in range(2):
        net(torch.ones(1, 3)).sum().backward()
        assert [private.has_gradient(each) for each in group.fsdp_params] == [True, True]
        assert all(len(private.gathered_gradients(each)) == 1 for each in group.fsdp_params)
        assert net.weight.grad is None
        for each in group.fsdp_params:
            private.drop_gradient(each)
        assert not any(map(private.has_gradient, group.fsdp_params))
    net(torch.ones(1, 3)).sum().backward()
    net.set_requires_gradient_sync(True)
    private.end_backward(net)
    assert torch.equal(net.weight.grad.full_tensor(), torch.ones(2, 3))
    assert not any(map(private.has_gradient, group.fsdp_params))


def test_a_root_that_has_not_run_has_nothing_to_reset(mesh):
    net = fully_shard(nn.Linear(3, 2), mesh=mesh)
    assert not private.has_run(net)
    with pytest.raises(AttributeError):
        net.reset_iter_state()
    net(torch.ones(1, 3))
    assert private.has_run(net)
    net.reset_iter_state()


def test_a_backward_that_raised_is_unfinished(mesh):
    net = fully_shard(nn.Linear(3, 2), mesh=mesh)
    net(torch.ones(1, 3)).sum().backward()
    assert not private.has_unfinished_backward(net)
    output = net(torch.ones(1, 3))
    net.weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        output.sum().backward()
    assert private.has_unfinished_backward(net)
    net.reset_iter_state()
    assert not private.has_unfinished_backward(net)


def test_views_are_reported():
    tensor = torch.ones(2)
    assert private.is_view(tensor[:1])
    assert not private.is_view(tensor)


@pytest.fixture
def named_mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1, 1, 1), mesh_dim_names=("copies", "shards", "more", "layers"))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("dims", "names"),
    [
        ([["shards"]], ("shards",)),
        ([["copies"], ["shards"]], ("copies", "shards")),
        ([["shards", "more"]], ("shards_more",)),
        ([["copies"], ["shards", "more"]], ("copies", "shards_more")),
    ],
)
def test_dimensions_of_a_mesh_are_joined(named_mesh, dims, names):
    joined = private.joined_mesh(named_mesh, dims)
    assert joined.mesh_dim_names == names
    # What is split along another dimension may be sharded over it.
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), named_mesh["layers"], [Shard(1)]))
    fully_shard(layer, mesh=joined)
    assert layer.weight.device_mesh.mesh_dim_names == (*names, "layers")
