"""Every call of collectives is handed on as it was made, and ranks that read different batches are the wrapper."""

import pytest
import torch

from stratagem.collectives.base import Collectives
from stratagem.collectives.local import LocalCollectives
from stratagem.collectives.wrapper import CollectivesWrapper

ONES = torch.ones(2)


class Notes(Collectives):
    """Answers every call with what it got."""

    rank, local_rank, node_rank, world_size = 5, 1, 2, 6
    device = torch.device("meta")
    process_group, mesh = "a group", "a mesh"

    def all_reduce(self, tensor, op="mean"):
        return "all_reduce", tensor, op

    def all_gather(self, tensor, sync_grads=False):
        return "all_gather", tensor, sync_grads

    def broadcast(self, value, src=0):
        return "broadcast", value, src

    def gather_objects(self, value):
        return ["gather_objects", value]

    def barrier(self, name=None):
        self.came_to = name

    def all_arrive(self, name, timeout_s):
        return name, timeout_s

    def close(self, failed=False):
        self.closed = failed


@pytest.fixture
def both():
    inner = Notes()
    return inner, CollectivesWrapper(inner)


def test_calls_are_handed_on_with_their_arguments(both):
    inner, wrapper = both
    assert wrapper.all_reduce(ONES) == ("all_reduce", ONES, "mean")
    assert wrapper.all_reduce(ONES, "max") == ("all_reduce", ONES, "max")
    assert wrapper.all_gather(ONES) == ("all_gather", ONES, False)
    assert wrapper.all_gather(ONES, True) == ("all_gather", ONES, True)
    assert wrapper.broadcast("x") == ("broadcast", "x", 0)
    assert wrapper.broadcast("x", 3) == ("broadcast", "x", 3)
    assert wrapper.gather_objects("x") == ["gather_objects", "x"]
    assert wrapper.all_arrive("here", 2.0) == ("here", 2.0)
    wrapper.barrier("lunch")
    wrapper.close(failed=True)
    assert (inner.came_to, inner.closed) == ("lunch", True)


def test_its_place_is_that_of_the_wrapped(both):
    _, wrapper = both
    assert (wrapper.rank, wrapper.local_rank, wrapper.node_rank, wrapper.world_size) == (5, 1, 2, 6)
    assert (wrapper.device, wrapper.process_group, wrapper.mesh) == (
        torch.device("meta"),
        "a group",
        "a mesh",
    )


def test_ranks_that_all_read_their_own_batches_are_wrapped_too(both):
    _, wrapper = both
    assert wrapper.data is wrapper
    outer = CollectivesWrapper(wrapper)
    assert outer.data is outer


def test_ranks_that_share_copies_stay_as_they_are():
    parts = LocalCollectives(torch.device("cpu"))

    class Shares(Notes):
        data = parts

    assert CollectivesWrapper(Shares()).data is parts
