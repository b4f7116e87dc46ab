"""Processes that stay: ranks of one task after the other, ended when one fails."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_tasks import fails_on_one, groups, hangs, hangs_with_a_loader, killed, place, variables
from stratagem_testing.workers import RankError, Workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


def test_ranks_have_the_variables_of_torchrun_and_stay(workers: Workers) -> None:
    first, second = workers.run(2, place), workers.run(2, place)
    assert [(rank, size) for rank, size, _ in first] == [(0, 2), (1, 2)]
    assert [pid for *_, pid in first] == [pid for *_, pid in second]
    assert os.getpid() not in [pid for *_, pid in first]


def test_groups_that_follow_each_other_in_one_store_keep_apart(workers: Workers) -> None:
    assert workers.run(2, groups, 3) == [[1.0, 1.0, 1.0]] * 2
    assert workers.run(1, groups, 2) == [[0.0, 0.0]]
    assert workers.run(2, groups, 2) == [[1.0, 1.0]] * 2


def test_the_first_rank_that_fails_is_named_and_the_next_task_has_new_processes(workers: Workers) -> None:
    before = workers.run(2, place)
    with pytest.raises(RankError, match="ZeroDivisionError") as caught:
        workers.run(2, fails_on_one)
    assert caught.value.rank == 1
    assert isinstance(caught.value.error, ZeroDivisionError)
    assert "printed before" in caught.value.output
    assert {pid for *_, pid in before}.isdisjoint(pid for *_, pid in workers.run(2, place))


def test_a_rank_that_is_killed_or_hangs_is_named(workers: Workers) -> None:
    with pytest.raises(RankError, match="exit code -9"):
        workers.run(2, killed)
    workers.run(2, place)  # starts the processes, which may take a while
    # All ranks hang: one that returns might need longer than the deadline on a busy machine.
    with pytest.raises(RankError, match="rank 0, 1 hung: not done after 2 s"):
        workers.run(2, hangs, timeout_s=2.0)


def test_a_rank_that_hangs_shows_its_stacks_and_leaves_no_process(workers: Workers, tmp_path: Path) -> None:
    workers.run(2, place)
    with pytest.raises(RankError, match="rank 1 hung") as caught:
        workers.run(2, hangs_with_a_loader, str(tmp_path), timeout_s=30.0)
    assert "in hangs_with_a_loader" in caught.value.output
    started = [int(pid) for pid in (tmp_path / "started").read_text().split()]
    deadline = time.monotonic() + 60  # they may wait to be reaped
    while any(map(is_running, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(filter(is_running, started))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_alone_is_a_process_that_no_launcher_made(workers: Workers) -> None:
    assert workers.alone(variables) == []
