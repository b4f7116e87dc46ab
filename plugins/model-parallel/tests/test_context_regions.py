"""What a rank keeps of its shard, and what it draws for it."""

from __future__ import annotations

import pytest
import torch
from long_sequences import dropped, of_class, saved_bytes
from stratagem_testing import StrategySubject


def subject(world_size: int, **options: object) -> StrategySubject:
    return StrategySubject(
        "context_parallel",
        options={"timeout_s": 60, "parallelize": of_class, **options},
        data_ranks=one,
        world_size=world_size,
    )


def one(world_size: int) -> int:
    return 1


@pytest.mark.parametrize("attention", ["ulysses", "ring"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_activations_are_divided_by_the_ranks(world_size: int, attention: str) -> None:
    alone = saved_bytes(None, 4)
    for bytes_here in subject(world_size, attention=attention).run(saved_bytes, 4):
        assert abs(bytes_here * world_size / alone - 1) < 0.05


def test_ranks_draw_dropout_apart_and_the_same_again() -> None:
    ranks = subject(2).run(dropped)
    for rank in ranks:
        assert torch.equal(rank.outputs, ranks[0].outputs)
        assert torch.equal(rank.outputs, rank.again)
        assert not torch.equal(*rank.outputs.chunk(2, 1))
    assert ranks[0].next_draw == ranks[1].next_draw
