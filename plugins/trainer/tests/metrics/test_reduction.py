from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stratagem_trainer.metrics.reduction import PER_BLOCK, LogReduction, PartialReduction, RankLog
from threads import on_threads

from stratagem.errors import LoggingError


def reduce_on(parts: list[dict[str, PartialReduction]]) -> tuple[list[Any], int]:
    calls: list[int] = []

    def work(collectives: Any) -> Any:
        original = collectives.all_gather

        def counted(tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
            if collectives.rank == 0:
                calls.append(1)
            return original(tensor, sync_grads)

        collectives.all_gather = counted
        try:
            return LogReduction(collectives).reduce(RankLog(parts[collectives.rank]), "step 3").values
        except LoggingError as error:
            return str(error)

    return on_threads(len(parts), work), len(calls)


def test_reduces_each_in_its_way_with_one_collective() -> None:
    one = {
        "a": PartialReduction("mean", 1.0, 30),
        "b": PartialReduction("sum", 2, 1),
        "c": PartialReduction("min", 5.0, 1),
    }
    two = {
        "c": PartialReduction("min", 4.0, 1),
        "a": PartialReduction("mean", torch.tensor(4.0), 10),
        "b": PartialReduction("sum", 3, 1),
    }
    results, collectives = reduce_on([one, two])
    assert results[0] == results[1] == {"a": 1.75, "b": 5.0, "c": 4.0}
    assert collectives == 1


def test_max_over_four_ranks() -> None:
    results, _ = reduce_on([{"m": PartialReduction("max", float(rank), 1)} for rank in range(4)])
    assert results == [{"m": 3.0}] * 4


def test_more_names_than_a_block_holds() -> None:
    names = [f"n{index}" for index in range(PER_BLOCK + 5)]
    parts = [{name: PartialReduction("sum", float(rank + 1), 1) for name in names} for rank in range(2)]
    results, collectives = reduce_on(parts)
    assert results[1] == dict.fromkeys(names, 3.0)
    assert collectives == 2


@pytest.mark.parametrize("names", [["a", "b"], ["", "b"]])
def test_different_names_are_an_error_on_every_rank(names: list[str]) -> None:
    parts = [{name: PartialReduction("mean", 1.0, 1)} if name else {} for name in names]
    results, _ = reduce_on(parts)
    assert all("rank 1 logs ['b']" in result and "step 3" in result for result in results)


def test_one_name_reduced_differently_is_an_error() -> None:
    results, _ = reduce_on([{"a": PartialReduction("mean", 1.0, 1)}, {"a": PartialReduction("sum", 1.0, 1)}])
    assert all("reduced differently" in result for result in results)


def test_threads_really_meet() -> None:
    barrier = threading.Barrier(2)
    work: Callable[[Any], int] = lambda collectives: (barrier.wait() and 0) or collectives.rank  # noqa: E731
    assert on_threads(2, work) == [0, 1]
