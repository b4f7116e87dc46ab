"""Layers are shared out so that the costliest stage costs as little as can be."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations, pairwise
from types import SimpleNamespace

import pytest
import torch
from stratagem_pipeline import PipelineStrategy, measure
from stratagem_pipeline.balance import by_hand, partition
from stratagem_pipeline.measure import measured, parameter_bytes
from stratagem_pipeline.schedules import SCHEDULES, schedule_named
from torch import nn

from stratagem import ConfigError, Precision


def bottleneck(costs: list[float], sizes: list[int]) -> float:
    remaining = iter(costs)
    return max(sum(next(remaining) for _ in range(size)) for size in sizes)


def best_by_trying(costs: list[float], stages: int) -> float:
    count = len(costs)
    tried = []
    for cuts in combinations(range(1, count), stages - 1):
        edges = [0, *cuts, count]
        tried.append(bottleneck(costs, [b - a for a, b in pairwise(edges)]))
    return min(tried)


@pytest.mark.parametrize("seed", range(60))
def test_no_partition_has_a_smaller_bottleneck(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 10)
    costs = [draw.choice([0.0, draw.random(), draw.randint(1, 9)]) for _ in range(count)]
    for stages in range(1, count + 1):
        sizes = partition(costs, stages)
        assert sum(sizes) == count
        assert len(sizes) == stages
        assert min(sizes) >= 1
        assert bottleneck(costs, sizes) == pytest.approx(best_by_trying(costs, stages))


def test_more_stages_than_layers_and_wrong_balances_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 layers, too few for 4 stages"):
        partition([1, 1, 1], 4)
    with pytest.raises(ConfigError, match="adds up to 4, and the pipelined module has 5 layers"):
        by_hand([2, 2], 5, 2)
    with pytest.raises(ConfigError, match=r"has 3 entries, and this pipeline 2 stages"):
        by_hand([2, 2, 1], 5, 2)
    with pytest.raises(ConfigError, match="a stage without layers"):
        by_hand([5, 0], 5, 2)
    assert by_hand((2, 3), 5, 2) == [2, 3]
    for wrong in ("evenly", [1.5, 2], 3, None, [True, 1]):
        with pytest.raises(ConfigError, match="neither the number of layers of each stage"):
            PipelineStrategy(balance=wrong)  # type: ignore[arg-type]  # wrong on purpose


class Slow(nn.Module):
    calls = 0

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.inner, self.repeats = nn.Linear(64, 64), repeats

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.repeats):
            x = torch.tanh(self.inner(x))
        Slow.calls += 1
        return x


def materialized(layer: nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


def test_measures_what_layers_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def clock() -> float:
        """Return a time that is 1 later at each look, and 10 later after each forward of `Slow`."""
        nonlocal asked
        asked += 1
        return float(asked + 10 * Slow.calls)

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=clock))
    layers = [
        nn.Linear(64, 64),
        Slow(40),
        nn.ReLU(inplace=True),
        nn.BatchNorm1d(64),
        nn.Linear(64, 8, bias=False),
    ]
    x = torch.randn(16, 64)
    before = [buffer.clone() for layer in layers for buffer in layer.buffers()]
    assert parameter_bytes(layers)[:3] == [64 * 65 * 4, 64 * 65 * 4, 0]
    call = nn.Module.__call__
    kept = measured("activations", layers, x, materialized, Precision(), call)
    assert kept[0] == 16 * 64 * 4  # its input
    assert kept[1] > 30 * kept[0]
    seconds = measured("time", layers, x, materialized, Precision(), call)
    assert seconds == [1, 11, 1, 1, 1]
    after = [buffer for layer in layers for buffer in layer.buffers()]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(before, after))
    assert all(parameter.grad is None for layer in layers for parameter in layer.parameters())


def test_schedules_by_our_names_and_by_torchs() -> None:
    from torch.distributed.pipelining import schedules

    for name, schedule in SCHEDULES.items():
        assert schedule_named(name) is schedule
        assert schedule_named(schedule.torch_name) is schedule
        assert schedule_named(schedule.torch_class().__name__) is schedule
        assert issubclass(schedule.torch_class(), schedules.PipelineScheduleMulti) == schedule.several
    with pytest.raises(ConfigError, match="'zigzag' must be one of gpipe, 1f1b"):
        PipelineStrategy(schedule="zigzag")


def test_which_rank_has_which_stage() -> None:
    assert SCHEDULES["1f1b"].ranks(3, 1) == [0, 1, 2]
    assert SCHEDULES["interleaved_1f1b"].ranks(2, 3) == [0, 1, 0, 1, 0, 1]
    assert SCHEDULES["zbv"].ranks(3, 2) == [0, 1, 2, 2, 1, 0]
    assert SCHEDULES["looped_bfs"].stages_per_rank(None) == 2
    wrongs = (("zbv", 3, "exactly 2"), ("gpipe", 2, "has 1 stage"), ("looped_bfs", 0, "at least 1"))
    for schedule, wrong, why in wrongs:
        with pytest.raises(ConfigError, match=why):
            PipelineStrategy(schedule=schedule, stages_per_rank=wrong)


def test_numbers_of_micro_batches_that_a_schedule_cannot_run() -> None:
    for name, count, size, stages in (
        ("1f1b", 3, 4, 4),
        ("dualpipev", 3, 2, 4),
        ("interleaved_1f1b", 5, 2, 4),
        ("interleaved_zero_bubble", 5, 2, 4),
        ("gpipe", 0, 2, 2),
    ):
        with pytest.raises(ConfigError, match=f"micro_batches={count}"):
            SCHEDULES[name].check_micro_batches(count, size, stages)
    for name in SCHEDULES:
        SCHEDULES[name].check_micro_batches(8, 2, 4)


def test_sizes_multiply_to_the_world() -> None:
    assert PipelineStrategy().sizes(4) == (1, 4)
    assert PipelineStrategy(data_parallel_size=2).sizes(4) == (2, 2)
    assert PipelineStrategy(data_parallel_size=1, pipeline_parallel_size=3).sizes(3) == (1, 3)
    for how in ({"data_parallel_size": 3}, {"pipeline_parallel_size": 2}, {"data_parallel_size": 0}):
        with pytest.raises(ConfigError, match="choose sizes whose product is 4"):
            PipelineStrategy(**how).sizes(4)  # type: ignore[arg-type]  # sizes by their names
