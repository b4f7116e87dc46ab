"""A strategy's mesh is found through whatever wraps its collectives."""

from __future__ import annotations

import pytest
import torch
from stratagem_sharding.meshes import mesh_of

from stratagem import CollectivesWrapper, CombinationError, LocalCollectives, Runtime


class Arranged(LocalCollectives):
    mesh = "a mesh"


class OfItsOwn(CollectivesWrapper):
    mesh = None


def test_it_is_found_through_a_wrapper():
    arranged = Arranged(torch.device("cpu"))
    assert mesh_of(CollectivesWrapper(CollectivesWrapper(arranged))) == "a mesh"


def test_a_wrapper_that_hides_it_is_named():
    with pytest.raises(
        CombinationError, match=r"OfItsOwn has no `mesh`.* derive the class from CollectivesWrapper"
    ):
        mesh_of(OfItsOwn(Arranged(torch.device("cpu"))))


def arranged(runtime):
    strategy, collectives = runtime.session.run.strategy, runtime.collectives
    before = collectives.mesh
    mesh = strategy.open_mesh((1, 2), ("copies", "shards"), "cpu")
    collectives.arrange(mesh, "copies")
    return before, mesh_of(collectives) is mesh, collectives.data.world_size


def test_ranks_are_arranged():
    runtime = Runtime(strategy="ddp", accelerator="cpu", devices=2, strategy_options={"start_method": "fork"})
    assert runtime.launch(arranged, quiet=True) == (None, True, 1)
