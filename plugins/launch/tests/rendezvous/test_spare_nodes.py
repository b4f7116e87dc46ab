"""Nodes that wait, because a run takes part of them in units: threads stand for the nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from stratagem_launch.launch_dir import ROUND, LaunchDir
from stratagem_launch.rendezvous.dynamic import CheckedBackend
from stratagem_launch.rendezvous.generations import GenerationRendezvous, whole_units_first
from stratagem_launch.rendezvous.joining import RunEndedError
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in __all__
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


def node(store: HashStore, folder: Path) -> GenerationRendezvous:
    """Return a node of a run of 2 to 4, in twos."""
    folder.mkdir()
    parameters = RendezvousParameters("c10d", "", "run", 2, 4, last_call_timeout="3")
    inner = create_handler(store, CheckedBackend(C10dRendezvousBackend(store, "run")), parameters)
    return GenerationRendezvous(inner, LaunchDir(str(folder)), "127.0.0.1", "run", node_unit=2)


@contextmanager
def running(nodes: list[GenerationRendezvous]) -> Iterator[ThreadPoolExecutor]:
    """Give threads for nodes. The run ends with the block, also by a failure: a spare node waits for that."""
    with ThreadPoolExecutor(8) as pool:
        try:
            yield pool
        finally:
            for each in nodes:
                each.shutdown()


def join(pool: ThreadPoolExecutor, nodes: list[GenerationRendezvous]) -> list[Future[RendezvousInfo]]:
    return [pool.submit(node.next_rendezvous) for node in nodes]


def first_two(joined: list[Future[RendezvousInfo]]) -> list[Future[RendezvousInfo]]:
    """Return the nodes that take part; the third one waits."""
    return list(islice(as_completed(joined, timeout=200), 2))


def test_a_third_node_waits_until_the_run_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = HashStore()
    nodes = [node(store, tmp_path / str(number)) for number in range(3)]
    with running(nodes) as pool:
        joined = join(pool, nodes)
        there = first_two(joined)
        (spare,) = (number for number, each in enumerate(joined) if each not in there)
        for number in {0, 1, 2} - {spare}:
            nodes[number].shutdown()
        with pytest.raises(RunEndedError):
            joined[spare].result(60)
    assert sorted((each.result().rank, each.result().world_size) for each in there) == [(0, 2), (1, 2)]
    assert not (tmp_path / str(spare) / ROUND).exists()
    assert "3 machines are here, and 2 take part" in capsys.readouterr().err


def test_a_spare_node_takes_part_once_a_fourth_has_come(tmp_path: Path) -> None:
    store = HashStore()
    nodes = [node(store, tmp_path / str(number)) for number in range(4)]
    with running(nodes) as pool:
        joined = join(pool, nodes[:3])
        there = first_two(joined)
        users = [number for number, each in enumerate(joined) if each in there]
        (spare,) = {0, 1, 2} - set(users)
        fourth = join(pool, nodes[3:])
        # The agents of the two end their workers once they see that a node waits.
        while not all(nodes[number].num_nodes_waiting() for number in users):
            time.sleep(0.05)
        again = [*join(pool, [nodes[number] for number in users]), joined[spare], *fourth]
        infos = [each.result(60) for each in again]
        rounds = {(tmp_path / str(number) / ROUND).read_text() for number in range(4)}
    assert sorted((info.rank, info.world_size) for info in infos) == [(rank, 4) for rank in range(4)]
    assert rounds == {"1"}


@pytest.mark.parametrize(
    ("former", "order"),
    [
        ([None, None, None], [0, 1, 2]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([3, 1, 2], [2, 0, 1]),
        ([1, 2, 3], [1, 2, 0]),
        ([None, 0, 1, 2], [1, 2, 0, 3]),
    ],
)
def test_nodes_of_a_unit_that_is_whole_go_on_together(former: list[int | None], order: list[int]) -> None:
    assert whole_units_first(former, 2) == order
