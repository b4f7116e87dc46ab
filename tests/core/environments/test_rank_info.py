"""Positions that can't be are refused when they are made."""

from typing import Any

import pytest

from stratagem.environments.rank_info import DERIVED_PORTS, MOST_PROCESSES, RankInfo, derived_port
from stratagem.errors import UsageError


def info(**fields: Any) -> RankInfo:
    made = {"global_rank": 5, "local_rank": 1, "node_rank": 2, "world_size": 6, "local_world_size": 2}
    return RankInfo(**{**made, "main_address": "host", "main_port": 65535, **fields})


def test_what_is_possible_is_kept() -> None:
    assert info().global_rank == 5
    assert info(global_rank=0, local_rank=0, world_size=2).world_size == 2
    assert info(world_size=MOST_PROCESSES).world_size == MOST_PROCESSES


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"world_size": MOST_PROCESSES + 1}, "the run has 1000001 processes; at most 1000000 are believed"),
        ({"main_port": 65536}, "the ranks meet at port 65536; the highest is 65535"),
        ({"global_rank": 6}, "gave this process rank 6 among 6 processes"),
        ({"global_rank": -1}, "rank -1 among 6 processes; it must be at least 0 and less than 6"),
        ({"local_rank": 2}, "local rank 2 among 2 processes on this node"),
        ({"local_rank": -1}, "local rank -1 among 2 processes on this node"),
        ({"local_world_size": 7}, "7 processes are on this node, and 6 altogether"),
    ],
)
def test_what_is_not_possible_is_refused(fields: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        info(**fields)


def test_jobs_and_steps_near_each_other_have_ports_of_their_own() -> None:
    ports = [derived_port(job, step) for job in range(700, 1200) for step in range(16)]
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(DERIVED_PORTS)
    assert derived_port(10**9, 10**6) in DERIVED_PORTS
    assert derived_port(3, 1) == derived_port(3) + 1 == derived_port(3, 17)
