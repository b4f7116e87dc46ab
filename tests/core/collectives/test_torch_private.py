"""Torch still has what collectives use of its private names, with the same meaning."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

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
