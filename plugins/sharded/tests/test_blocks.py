"""Which submodules are reduced by themselves."""

import pytest
from stratagem_sharded.blocks import blocks_in
from torch import nn

import stratagem


class Block(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.Linear(4 * width, width))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList([Block(), Block(), Block(8)])
        self.head = nn.Linear(256, 1000, bias=False)


def test_the_large_members_of_lists_are_blocks():
    model = Model()
    assert set(blocks_in(model, None)) == {model.blocks[0], model.blocks[1]}


def test_named_classes_are_blocks_inner_ones_first():
    model = Model()
    found = blocks_in(model, ["Block", nn.Linear])
    assert len(found) == 3 + 6 + 1
    assert found.index(model.blocks[0].inner[0]) < found.index(model.blocks[0])


def test_a_block_that_shares_a_parameter_is_left_to_the_rest():
    model = Model()
    model.head.weight = model.blocks[0].inner[0].weight = nn.Parameter(model.head.weight.detach())
    assert blocks_in(model, None) == [model.blocks[1]]


def test_a_class_that_is_not_there_is_refused():
    with pytest.raises(
        stratagem.ConfigError, match=r"blocks names 'Layer', and this model has none: it has Block"
    ):
        blocks_in(Model(), ["Layer"])
