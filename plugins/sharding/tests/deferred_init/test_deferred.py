"""Construction without memory gives what construction on the CPU gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from blocks import Block
from stratagem_sharding.deferred_init import Construction
from torch import nn


class Tricky(nn.Module):
    """Initialises its children's parameters, draws in between, ties, fills parts, copies, and computes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.first = nn.Linear(8, 8)
        torch.rand(3)
        self.tied = self.first.weight
        self.embedding = nn.Embedding(5, 8, padding_idx=2)
        self.orthogonal = nn.Linear(4, 4)
        nn.init.orthogonal_(self.orthogonal.weight)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        nn.init.trunc_normal_(self.first.weight, std=0.02)
        nn.init.trunc_normal_(self.attention.out_proj.weight, a=-0.5, b=0.5)
        with torch.no_grad():
            self.first.bias[2:5] = 7.0
            self.embedding.weight[0].copy_(self.first.weight[1] * 2)
        frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("literal", torch.tensor([1.0, 2.0, 3.0]))
        torch.manual_seed(11)
        self.last = nn.LSTM(3, 4)
        self.loaded = nn.Linear(3, 2)
        self.loaded.load_state_dict({"weight": torch.full((2, 3), 4.0, device="cpu"), "bias": torch.zeros(2)})


@pytest.mark.parametrize("make", [Tricky, lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), Block])
def test_every_value_is_the_one_of_construction_on_the_cpu(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    expected, drawn = make(), torch.rand(2)
    construction = Construction()
    torch.manual_seed(3)
    with construction.recorded():
        late = make()
    assert torch.equal(torch.rand(2), drawn)
    assert all(parameter.is_meta for parameter in late.parameters())
    ours = [*late.named_parameters(), *late.named_buffers()]
    theirs = dict([*expected.named_parameters(), *expected.named_buffers()])
    before = torch.get_rng_state()
    # One by one, and last to first: no tensor needs the others to be there.
    for name, tensor in reversed(ours):
        if tensor.is_meta:
            assert construction.knows(tensor)
            (tensor,) = construction.materialize([tensor])
        assert torch.equal(tensor, theirs[name]), name
    assert torch.equal(torch.get_rng_state(), before)


def test_attributes_that_are_neither_parameters_nor_buffers_are_filled() -> None:
    construction, module = Construction(), nn.Module()
    with construction.recorded():
        module.weights = {"of": [torch.arange(3), "words"]}
    construction.fill_attributes(module)
    assert torch.equal(module.weights["of"][0], torch.arange(3))
