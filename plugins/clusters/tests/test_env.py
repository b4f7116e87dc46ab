"""What follows from the variables of `init_process_group("env://")`."""

from __future__ import annotations

import pytest
from stratagem_clusters import Env

from stratagem.environments.base import Environment, RequestedSize
from stratagem.errors import UsageError

FAR = {"RANK": "5", "WORLD_SIZE": "6", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
BY_HAND = {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}


def place(environment: Environment) -> tuple[int, int, int, int, int, str, int]:
    return (
        environment.global_rank,
        environment.local_rank,
        environment.node_rank,
        environment.world_size,
        environment.local_world_size,
        environment.main_address,
        environment.main_port,
    )


def test_env_on_one_node_needs_no_local_rank() -> None:
    local = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert place(Env(local)) == (1, 1, 0, 2, 2, "localhost", 29500)


def test_env_on_several_nodes_needs_the_local_size() -> None:
    assert place(Env(FAR | {"LOCAL_WORLD_SIZE": "2"})) == (5, 1, 2, 6, 2, "10.0.0.1", 29500)
    assert place(Env(FAR | {"LOCAL_SIZE": "3", "LOCAL_RANK": "2"}))[1:5] == (2, 1, 6, 3)
    with pytest.raises(UsageError, match="set LOCAL_WORLD_SIZE and LOCAL_RANK"):
        Env(FAR)


def test_a_process_alone_may_be_anywhere() -> None:
    alone = FAR | {"RANK": "0", "WORLD_SIZE": "1"}
    assert place(Env(alone)) == (0, 0, 0, 1, 1, "10.0.0.1", 29500)


def test_what_cannot_be_a_number_of_processes_is_refused() -> None:
    with pytest.raises(UsageError, match="LOCAL_WORLD_SIZE is 0; it must be at least 1"):
        Env(FAR | {"LOCAL_WORLD_SIZE": "0"})
    with pytest.raises(UsageError, match=r"^RANK isn't set, which a launcher"):
        Env({name: value for name, value in FAR.items() if name != "RANK"})


def test_the_local_rank_is_what_was_said() -> None:
    assert Env(FAR | {"LOCAL_WORLD_SIZE": "3"}).local_rank == 2
    assert Env(FAR | {"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "0"}).local_rank == 0


def test_why_it_is_this_environment() -> None:
    for environ in (FAR, FAR | {"LOCAL_RANK": "1"}):
        assert Env.detect(environ) == "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set"
    assert Env.detect(BY_HAND) == (
        "LOCAL_RANK, WORLD_SIZE, MASTER_PORT are set, as by hand for one of several processes"
    )
    assert Env.detect({"MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": "2"}) is None
    assert Env.detect({}) is None


def test_what_was_started_by_hand_is_completed() -> None:
    expected = (1, 1, 0, 2, 2, "127.0.0.1", 29500)
    assert place(Env(BY_HAND)) == expected
    lacking = {name: value for name, value in BY_HAND.items() if name != "WORLD_SIZE"}
    assert place(Env.for_run(lacking, RequestedSize(processes_per_node=2))) == expected
    with pytest.raises(UsageError, match="LOCAL_WORLD_SIZE, WORLD_SIZE"):
        Env(lacking)


def test_what_is_none_of_several_lacks_its_rank() -> None:
    with pytest.raises(UsageError, match=r"^RANK isn't set"):
        Env.for_run({"MASTER_ADDR": "10.0.0.1"}, RequestedSize(2))
