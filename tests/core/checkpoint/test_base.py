"""What a checkpointer is given, and what an author has to define."""

import dataclasses
import inspect

import pytest
import torch

from stratagem.checkpoint.base import Checkpoint, Checkpointer, CheckpointReader, TensorInfo


def test_a_checkpoint_may_be_of_tensors_alone():
    weight = {"model/weight": torch.ones(2)}
    first, second = Checkpoint(weight), Checkpoint(weight)
    assert (first.tensors, first.state, first.rank_state) == (weight, {}, {})
    assert first.state is not second.state
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.state = {"step": 1}


def test_tensors_are_described_by_shape_and_dtype():
    info = TensorInfo((2, 3), torch.float32)
    assert {info} == {TensorInfo((2, 3), torch.float32)}
    assert info not in (TensorInfo((3, 2), torch.float32), TensorInfo((2, 3), torch.float64))


class Reader(CheckpointReader):
    def rank_state(self, rank):
        return None

    def read(self, targets):
        return None


class Keeper(Checkpointer):
    def save(self, path, checkpoint):
        return None

    def open(self, path, verify=True):
        return Reader()

    def remove(self, path):
        return None


def test_a_reader_without_a_path_is_called_something_in_errors():
    assert Reader().path == "the checkpoint"


@pytest.mark.parametrize(
    ("cls", "base", "method"),
    [
        (Reader, CheckpointReader, "rank_state"),
        (Reader, CheckpointReader, "read"),
        (Keeper, Checkpointer, "save"),
        (Keeper, Checkpointer, "open"),
        (Keeper, Checkpointer, "remove"),
    ],
)
def test_each_method_has_to_be_defined(cls, base, method):
    cls()
    with pytest.raises(TypeError, match=f"abstract.*{method}"):
        type("Lacking", (cls,), {method: getattr(base, method)})()


def test_checksums_are_compared_by_default():
    assert inspect.signature(Checkpointer.open).parameters["verify"].default is True
