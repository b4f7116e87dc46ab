"""Means over ranks in smaller numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_ddp import DDPStrategy
from stratagem_sharding.mean_exchange import BLOCK, MeanExchange, decoded, encoded

import stratagem


@pytest.mark.parametrize(("sent_as", "error"), [("fp16", 2.0**-11), ("bf16", 2.0**-8), ("int8", 1 / 254)])
def test_what_is_sent_is_within_its_precision(sent_as: str, error: float) -> None:
    rows = torch.randn(3, 4 * BLOCK) * torch.logspace(-6, 2, 4 * BLOCK)
    rows[1, :BLOCK] = 0
    back = decoded(encoded(rows, sent_as), sent_as)
    largest = rows.view(3, -1, BLOCK).abs().amax(-1, keepdim=True)
    assert torch.all((back - rows).view(3, -1, BLOCK).abs() <= error * 1.001 * largest + 1e-7)
    assert torch.equal(back[1, :BLOCK], torch.zeros(BLOCK))


def test_int8_sends_a_byte_for_a_number_and_four_for_a_block() -> None:
    assert encoded(torch.zeros(2, 8 * BLOCK), "int8").shape == (2, 8 * (BLOCK + 4))


@pytest.mark.parametrize("sent_as", ["bf16", "int8"])
def test_what_is_not_finite_stays_so(sent_as: str) -> None:
    rows = torch.ones(1, BLOCK)
    rows[0, 3] = torch.nan
    assert not decoded(encoded(rows, sent_as), sent_as).isfinite().all()


def means(runtime: Any) -> list[tuple[float, bool]]:
    """Per dtype and size: the error in parts of the largest number, and whether all ranks have the same bits."""
    rank = runtime.rank
    group = dist.group.WORLD
    found = []
    for sent_as in (None, "fp16", "bf16", "int8"):
        for count in (1, 700, 5000):
            given = torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
            true = torch.stack(runtime.collectives.gather_objects(given)).mean(0)
            exchange = MeanExchange(given.clone(), group, sent_as)
            exchange.advance()
            result = exchange.result()
            assert result.dtype == torch.float64
            assert torch.equal(result, exchange.result())
            ranks = runtime.collectives.gather_objects(result)
            is_same = all(torch.equal(each, ranks[0]) for each in ranks)
            found.append((float((result - true).abs().max() / given.abs().max()), is_same))
    return found


@pytest.mark.parametrize("devices", [2, 3])
def test_all_ranks_come_to_the_same_mean(devices: int) -> None:
    strategy = DDPStrategy(start_method="fork", timeout_s=200)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices)
    found = runtime.launch(means, quiet=True)
    assert all(is_same for _, is_same in found)
    for index, bound in enumerate((1e-14, 2.0**-10, 2.0**-7, 2.0**-6)):
        assert max(difference for difference, _ in found[3 * index : 3 * index + 3]) <= bound
