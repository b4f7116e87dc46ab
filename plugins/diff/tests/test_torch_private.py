"""What the recorder takes from torch's private names still is what it takes it for."""

from __future__ import annotations

import torch
from stratagem_diff.torch_private import in_backward, local_shard, version
from stratagem_diff.values import Shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as Split
from torch.testing._internal.distributed.fake_pg import FakeStore


def test_a_forward_within_backward_is_noticed() -> None:
    seen = []
    weight = torch.ones(2, requires_grad=True)
    loss = weight.sum()
    loss.register_hook(lambda gradient: seen.append(in_backward()))
    assert not in_backward()
    loss.backward()
    assert seen == [True]


def test_writes_to_a_tensor_are_counted() -> None:
    weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    before = version(weight)
    assert (weight + 1).sum() == 4
    assert version(weight) == before
    with torch.no_grad():
        weight[0].mul_(2)
    assert version(weight) > before


def test_an_uneven_shard_says_where_it_begins() -> None:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
    try:
        mesh = init_device_mesh("cpu", (3,))
        local = torch.arange(2.0).reshape(1, 2)
        tensor = DTensor.from_local(local, mesh, [Split(0)], run_check=False, shape=(5, 2), stride=(2, 1))
        assert torch.equal(local_shard(tensor)[0], local)
        assert local_shard(tensor)[1] == Shard((5, 2), (4, 0))
        whole = DTensor.from_local(torch.ones(2), mesh, [Replicate()], run_check=False)
        assert local_shard(whole)[1] == Shard((2,), (0,))
    finally:
        torch.distributed.destroy_process_group()
