"""Whether ranks come to a point, on real stores and on real processes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from averaging import Twins
from stratagem_ddp import DDPStrategy
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]  # exported, but not in __all__

import stratagem
from stratagem.collectives.arrival import all_arrive


def test_all_that_ask_get_one_answer_also_those_that_come_late() -> None:
    store = HashStore()

    def ask(rank: int, after_s: float = 0.0, timeout_s: float = 200) -> bool:
        time.sleep(after_s)
        return all_arrive(store, "lunch", rank, 3, timeout_s)

    with ThreadPoolExecutor(3) as pool:
        for late_s in (0.0, 0.1):
            asked = [pool.submit(ask, rank, late_s if rank == 2 else 0.0) for rank in range(3)]
            assert [each.result() for each in asked] == [True] * 3
        # Rank 2 comes after the others have given up, and gets their answer.
        asked = [pool.submit(ask, rank, 0.0, 0.2) for rank in range(2)]
        assert [each.result() for each in asked] == [False] * 2
        assert not ask(2)
        asked = [pool.submit(ask, rank) for rank in range(3)]
        assert [each.result() for each in asked] == [True] * 3
    # Nothing piles up: a count per rank, and what the last call needed.
    assert store.num_keys() == 3 + 2


def test_no_rank_is_waited_for_without_a_timeout(tmp_path: Path) -> None:
    for store in (HashStore(), FileStore(str(tmp_path / "store"))):
        assert not all_arrive(store, "now", 0, 2, 0.0)


def come(runtime: Any, is_late: bool) -> list[Any]:
    c = runtime.collectives
    seen = [c.all_arrive("start", 30), c.all_arrive("start", 30), c.data.all_arrive("start", 30)]
    if not is_late:
        return c.gather_objects(seen)
    if runtime.rank == 0:
        # The others wait in a collective, which isn't disturbed.
        seen.append(c.all_arrive("alone", 0.5))
    everyone: list[Any] = c.gather_objects(seen)
    return everyone


def test_ranks_that_are_in_a_collective_do_not_arrive() -> None:
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=60))
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=2)
    assert runtime.launch(come, True, quiet=True) == [[True, True, True, False], [True, True, True]]


def test_ranks_that_share_data_are_asked_about_alone() -> None:
    runtime = stratagem.Runtime(strategy=Twins(), accelerator="cpu", devices=4)
    assert runtime.launch(come, False, quiet=True) == [[True, True, True]] * 4


def test_one_process_is_always_there() -> None:
    assert stratagem.LocalCollectives(torch.device("cpu")).all_arrive("anywhere", 0.0)


def test_a_point_in_a_group_that_other_code_opened() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        from stratagem.collectives.group import GroupCollectives

        assert GroupCollectives(dist.group.WORLD, torch.device("cpu")).all_arrive("here", 0.0)
    finally:
        dist.destroy_process_group()
