"""Collectives of one process are the identity, with the shapes and copies of several."""

import pytest
import torch

from stratagem.collectives.local import LocalCollectives


@pytest.fixture
def alone():
    return LocalCollectives(torch.device("cpu"))


def test_its_place(alone):
    assert (alone.rank, alone.local_rank, alone.node_rank, alone.world_size) == (0, 0, 0, 1)


@pytest.mark.parametrize("op", ["mean", "sum", "min", "max", "product"])
def test_a_reduction_is_a_copy(alone, op):
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    reduced = alone.all_reduce(tensor, op)
    assert torch.equal(reduced, tensor)
    assert not reduced.requires_grad
    reduced.zero_()
    assert tensor.tolist() == [1.0, 2.0]


def test_a_gathered_tensor_has_a_first_dim_of_ranks(alone):
    tensor = torch.ones(2, 3, requires_grad=True)
    gathered = alone.all_gather(tensor)
    assert gathered.shape == (1, 2, 3)
    assert not gathered.requires_grad
    gathered.zero_()
    assert tensor.sum() == 6
    alone.all_gather(tensor, sync_grads=True).sum().backward()
    assert torch.equal(tensor.grad, torch.ones(2, 3))


def test_a_broadcast_copies_tensors_and_hands_on_the_rest(alone):
    tensor, value = torch.ones(2), object()
    sent = alone.broadcast(tensor)
    sent.zero_()
    assert tensor.sum() == 2
    assert alone.broadcast(value) is value
    assert alone.gather_objects(value) == [value]
    assert alone.barrier("here") is None
