"""Torch still has what collectives use of its private names, with the same meaning."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from stratagem.collectives import torch_private as private


@pytest.fixture
def store():
    kept = dist.HashStore()
    dist.init_process_group("gloo", store=kept, rank=0, world_size=1)
    yield kept
    dist.destroy_process_group()


def test_the_store_of_a_group_is_the_one_it_was_opened_with(store):
    before = store.num_keys()
    private.store_of().set("key", "value")
    assert store.num_keys() == before + 1
    assert private.store_of().get("key") == b"value"


def test_a_groups_own_store_isnt_the_default_groups(store):
    group = dist.new_group([0])
    private.store_of(group).set("key", "value")
    assert not private.store_of().check(["key"])
    assert private.store_of(group).get("key") == b"value"


def test_a_group_tells_where_it_reduces(store):
    cpu = torch.device("cpu")
    assert private.is_on(dist.group.WORLD, cpu)
    assert not private.is_on(dist.group.WORLD, torch.device("meta"))
    assert private.backend_on(dist.group.WORLD, cpu) == "gloo"


def test_operations_on_former_meshes_are_forgotten(tmp_path):
    """A mesh that equals a former one has other process groups, and torch's cache has the former mesh."""

    def mesh_of_a_result():
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        mesh = DeviceMesh("cpu", [0], mesh_dim_names=("tensor",))
        tensor = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
        return mesh, (tensor + tensor).device_mesh

    private.forget_meshes()
    try:
        first, of_result = mesh_of_a_result()
        assert of_result is first
    finally:
        dist.destroy_process_group()
    (tmp_path / "store").unlink(missing_ok=True)  # torch 2.9 has removed it
    private.forget_meshes()
    try:
        second, of_result = mesh_of_a_result()
        assert second == first
        assert of_result is second
    finally:
        dist.destroy_process_group()
