"""The ranks that read different batches, in a raw loop and by their own collectives."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from averaging import Twins
from torch.utils.data import DataLoader, TensorDataset

import stratagem


def in_pairs(runtime: stratagem.Runtime) -> list[Any]:
    data = runtime.collectives.data
    loader = runtime.dataloader(DataLoader(TensorDataset(torch.arange(8)), 2))
    seen = [batch[0].tolist() for batch in loader]
    part = torch.tensor([float(data.rank)], requires_grad=True)
    (data.all_gather(part, sync_grads=True) * torch.tensor([[1.0], [10.0]])).sum().backward()
    data.barrier()
    assert part.grad is not None
    return runtime.collectives.gather_objects(
        {
            "place": (runtime.rank, runtime.data_rank, runtime.data_ranks),
            "local": (data.local_rank, data.node_rank),
            "seen": seen,
            "mean": float(data.all_reduce(torch.tensor(float(runtime.rank)))),
            "sum": int(data.all_reduce(torch.tensor(runtime.rank), "sum")),
            "from_last": float(data.broadcast(torch.tensor(float(runtime.rank)), src=1)),
            "named": data.broadcast(f"rank {runtime.rank}"),
            "gathered": data.gather_objects(runtime.rank),
            "grad": float(part.grad),
        }
    )


def test_each_pair_reads_its_part_and_talks_to_the_other_pair() -> None:
    ranks = stratagem.Runtime(Twins(), accelerator="cpu", devices=4, seed=3).launch(in_pairs, quiet=True)
    assert [reported["place"] for reported in ranks] == [(0, 0, 2), (1, 0, 2), (2, 1, 2), (3, 1, 2)]
    assert [reported["local"] for reported in ranks] == [(rank, 0) for rank in range(4)]
    assert ranks[0]["seen"] == ranks[1]["seen"]
    assert ranks[2]["seen"] == ranks[3]["seen"]
    assert sorted(chain(*ranks[0]["seen"], *ranks[2]["seen"])) == list(range(8))
    for rank, reported in enumerate(ranks):
        like = [rank % 2, rank % 2 + 2]
        assert reported["gathered"] == like
        assert (reported["mean"], reported["sum"], reported["from_last"]) == (
            sum(like) / 2,
            sum(like),
            like[1],
        )
        assert reported["named"] == f"rank {like[0]}"
    # The two losses of a part's pair add up.
    assert [reported["grad"] for reported in ranks] == [2.0, 2.0, 20.0, 20.0]


def draws(runtime: stratagem.Runtime, path: str, load: bool) -> list[Any]:
    runtime.setup(torch.nn.Linear(2, 2), lambda net: torch.optim.SGD(net.parameters(), 0.1))
    torch.manual_seed(runtime.data_rank)
    if load:
        runtime.load(path)
    else:
        runtime.save(path)
    return runtime.collectives.gather_objects(float(torch.rand(())))


@pytest.mark.parametrize("saved_in_pairs", [True, False])
def test_generators_come_back_only_to_ranks_that_share_data_as_before(
    tmp_path: Path, saved_in_pairs: bool
) -> None:
    path = str(tmp_path / "checkpoint")
    how: dict[str, Any] = {"accelerator": "cpu", "devices": 2}
    stratagem.Runtime(Twins() if saved_in_pairs else "ddp_fork", **how).launch(draws, path, False, quiet=True)
    first, second = stratagem.Runtime(Twins(), **how).launch(draws, path, True, quiet=True)
    assert first == second
