"""The default process group of a run: opened once, arranged, and closed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_clusters import TorchElastic
from stratagem_ddp import DDPStrategy
from torch.distributed.device_mesh import init_device_mesh

import stratagem
from stratagem.collectives.group import GroupCollectives
from stratagem.collectives.process_group import ProcessGroupCollectives
from stratagem.environments.single import SingleProcess
from stratagem.errors import CollectiveError, CombinationError, WorkerError

CPU = torch.device("cpu")


def opened() -> ProcessGroupCollectives:
    return ProcessGroupCollectives(SingleProcess({}), CPU, "gloo", timedelta(seconds=20))


@pytest.fixture
def alone():
    """The group of one process; closed by the test, or after it."""
    collectives = opened()
    yield collectives
    collectives.close(failed=True)


def test_it_is_open_until_it_is_closed_and_can_be_opened_again(alone: Any) -> None:
    assert dist.is_initialized()
    assert alone.process_group is dist.group.WORLD
    assert (alone.rank, alone.local_rank, alone.node_rank, alone.world_size) == (0, 0, 0, 1)
    alone.barrier("in between")
    alone.close()
    assert not dist.is_initialized()
    alone.close()
    again = opened()
    assert again.all_reduce(torch.ones(1)).item() == 1
    again.close()
    assert not dist.is_initialized()


def test_a_group_that_is_already_open_is_named() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]  # exported, but not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        runtime = stratagem.Runtime(DDPStrategy(), accelerator="cpu", devices=1)
        with pytest.raises(
            CombinationError, match=r"open in this process already.*destroy_process_group\(\)"
        ):
            runtime.launch(nothing, quiet=True)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def nothing(runtime: Any) -> None:
    raise AssertionError("never reached")


def test_all_ranks_read_different_batches_until_it_is_arranged(alone: Any) -> None:
    assert alone.data is alone
    assert alone.mesh is None
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "model"))
    alone.arrange(mesh, "data")
    assert alone.mesh is mesh
    assert type(alone.data) is GroupCollectives
    assert alone.data.process_group is mesh.get_group("data")
    assert (alone.data.rank, alone.data.world_size, alone.data.device) == (0, 1, CPU)
    alone.close()
    assert alone.mesh is None
    assert alone.data is alone
    assert alone.process_group is None


def arranged(runtime: Any) -> Any:
    c = runtime.collectives
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    c.arrange(mesh, "data")
    return c.gather_objects(
        (c.data.rank, c.data.world_size, c.data.local_rank, c.data.gather_objects(c.rank))
    )


def test_of_each_copy_one_rank_is_in_the_data_group() -> None:
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=120))
    seen = stratagem.Runtime(strategy, accelerator="cpu", devices=4).launch(arranged, quiet=True)
    assert seen == [(0, 2, 0, [0, 2]), (0, 2, 1, [1, 3]), (1, 2, 2, [0, 2]), (1, 2, 3, [1, 3])]


def has_proofs(runtime: Any) -> bool:
    return bool(runtime.collectives._store.check(["nonce"]))


def test_ranks_prove_that_they_are_of_the_run_where_there_is_another() -> None:
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=120))
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=2)
    assert runtime.launch(has_proofs, quiet=True)
    worker = {"TORCHELASTIC_RUN_ID": "a secret", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
    worker |= {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    alone = ProcessGroupCollectives(TorchElastic(worker), CPU, "gloo", timedelta(seconds=20))
    assert not alone._store.check(["nonce"])
    alone.close()


def stay_away(runtime: Any) -> None:
    runtime.barrier("breakfast")
    runtime.collectives.timeout = timedelta(seconds=4)
    if runtime.rank == 1:
        time.sleep(600)  # until the launch ends it
    runtime.barrier("lunch")


def test_a_barrier_names_itself_and_the_missing_rank() -> None:
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=120))
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=3)
    with pytest.raises(WorkerError) as caught:
        runtime.launch(stay_away, quiet=True)
    assert "failed in barrier 'lunch': rank 1 didn't come within 4 s" in str(caught.value)


def leave(runtime: Any) -> Any:
    if runtime.rank == 1:
        dist.destroy_process_group()  # as a rank that ends does
        time.sleep(1)
        return None
    with pytest.raises(CollectiveError) as caught:
        runtime.barrier()
    runtime.collectives.close(failed=True)
    return str(caught.value)


def test_a_rank_that_has_gone_is_not_waited_for() -> None:
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=600))
    said = stratagem.Runtime(strategy, accelerator="cpu", devices=2).launch(leave, quiet=True)
    assert said == "rank 0 of 2 failed in barrier: rank 1 didn't come and its connection is closed"


def test_a_rank_that_failed_does_not_wait(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    came = []
    monkeypatch.setattr(alone, "barrier", came.append)
    alone.close(failed=True)
    assert (came, dist.is_initialized()) == ([], False)


def test_close_waits_and_closes_even_if_waiting_fails(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise CollectiveError(f"no rank came to {name}")

    monkeypatch.setattr(alone, "barrier", fail)
    with pytest.raises(CollectiveError, match="no rank came to close"):
        alone.close()
    assert not dist.is_initialized()
