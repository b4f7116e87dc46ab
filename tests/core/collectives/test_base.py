"""What collectives answer that define only what they must."""

import inspect

import pytest
import torch

from stratagem.collectives.base import Collectives


class Least(Collectives):
    """Notes its barriers."""

    def __init__(self, world_size):
        self.rank = self.local_rank = self.node_rank = 0
        self.world_size, self.device, self.barriers = world_size, torch.device("cpu"), []

    def all_reduce(self, tensor, op="mean"):
        return tensor

    def all_gather(self, tensor, sync_grads=False):
        return tensor

    def broadcast(self, value, src=0):
        return value

    def gather_objects(self, value):
        return [value]

    def barrier(self, name=None):
        self.barriers.append(name)


def test_every_rank_has_a_copy_and_no_group_or_mesh():
    least = Least(2)
    assert least.data is least
    assert (least.process_group, least.mesh) == (None, None)
    assert least.close() is None
    assert least.close(failed=True) is None


def test_a_rank_that_cannot_ask_waits_for_the_others():
    least = Least(2)
    assert least.all_arrive("the end", 0.0) is True
    assert least.barriers == ["the end"]


def test_a_rank_alone_does_not_wait():
    least = Least(1)
    assert least.all_arrive("the end", 0.0) is True
    assert least.barriers == []


@pytest.mark.parametrize("method", ["all_reduce", "all_gather", "broadcast", "gather_objects", "barrier"])
def test_each_collective_has_to_be_defined(method):
    lacking = type("Lacking", (Least,), {method: getattr(Collectives, method)})
    with pytest.raises(TypeError, match=f"abstract.*{method}"):
        lacking(1)


def test_what_need_not_be_said():
    defaults = {
        name: parameter.default
        for method in (*Collectives.__abstractmethods__, "close")
        for name, parameter in inspect.signature(getattr(Collectives, method)).parameters.items()
        if parameter.default is not parameter.empty
    }
    assert defaults == {"op": "mean", "sync_grads": False, "src": 0, "name": None, "failed": False}
