"""Processes started by hand with some of PyTorch's variables: completed, or refused by name."""

from __future__ import annotations

import pytest
from stratagem_clusters import Env, Node
from stratagem_clusters.by_hand import is_one_of_several

from stratagem.environments.base import RequestedSize
from stratagem.errors import UsageError
from stratagem.launchers.base import LaunchPlan

HERE = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
THERE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
NODES_OF_2 = THERE | {"WORLD_SIZE": "4", "NODE_RANK": "1", "LOCAL_RANK": "1"}


def place(
    environ: dict[str, str], per_node: int | None = None, num_nodes: int | None = 1
) -> tuple[object, ...]:
    """(rank, local rank, node, world size, local size, address, port)."""
    assert Env.detect(environ)
    environment = Env.for_run(environ, RequestedSize(per_node, num_nodes))
    return (
        environment.global_rank,
        environment.local_rank,
        environment.node_rank,
        environment.world_size,
        environment.local_world_size,
        environment.main_address,
        environment.main_port,
    )


def test_on_one_node_the_rest_follows() -> None:
    for rank in (0, 1):
        given = HERE | {"WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        expected = (rank, rank, 0, 2, 2, "localhost", 29500)
        assert place(given) == expected
        assert place(given | {"NODE_RANK": "0"}) == expected
        assert place(given, per_node=2) == expected
        assert place(HERE | {"LOCAL_RANK": str(rank)}, per_node=2) == expected
        assert (
            place({"MASTER_PORT": "29500"} | {"LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})[:5] == expected[:5]
        )
        assert place(HERE | {"RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}) == expected


def test_on_several_nodes_the_rank_follows() -> None:
    expected = (3, 1, 1, 4, 2, "10.0.0.1", 29500)
    assert place(NODES_OF_2, per_node=2) == expected
    assert place(NODES_OF_2, num_nodes=2) == expected
    assert place(NODES_OF_2 | {"LOCAL_WORLD_SIZE": "2"}) == expected
    without_size = {name: value for name, value in NODES_OF_2.items() if name != "WORLD_SIZE"}
    assert place(without_size, per_node=2, num_nodes=2) == expected
    as_group = {name.replace("NODE_", "GROUP_"): value for name, value in NODES_OF_2.items()}
    assert place(as_group, per_node=2) == expected
    # Several nodes on one host, as for trying it out.
    assert place(NODES_OF_2 | HERE, per_node=2) == (3, 1, 1, 4, 2, "localhost", 29500)
    assert place(THERE | {"RANK": "3", "WORLD_SIZE": "4"}, per_node=2) == expected


def test_a_process_alone_needs_nothing_more() -> None:
    assert place({"LOCAL_RANK": "0"}, per_node=1) == (0, 0, 0, 1, 1, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        (HERE | {"LOCAL_RANK": "0"}, "LOCAL_WORLD_SIZE, WORLD_SIZE aren't set"),
        (HERE | {"RANK": "1"}, "WORLD_SIZE isn't set"),
        (HERE | {"RANK": "0"}, "WORLD_SIZE isn't set"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "MASTER_PORT isn't set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT isn't set"),
        (THERE | {"WORLD_SIZE": "4", "NODE_RANK": "1", "LOCAL_RANK": "0"}, "LOCAL_WORLD_SIZE isn't set"),
        (
            {"MASTER_PORT": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            "NODE_RANK, MASTER_ADDR aren't set",
        ),
    ],
)
def test_what_is_missing_and_what_was_found_are_named(given: dict[str, str], lacking: str) -> None:
    with pytest.raises(UsageError) as caught:
        place(given)
    said = str(caught.value)
    assert lacking in said
    assert all(f"{name}={value}" in said for name, value in given.items())
    assert "start the processes with torchrun" in said
    with pytest.raises(UsageError, match=lacking):
        Env(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (NODES_OF_2 | {"NODE_RANK": "2"}, "process 1 of node 2, rank 5 among 4"),
        (NODES_OF_2 | {"LOCAL_RANK": "2"}, "process 2 of node 1, rank 4 among 4"),
        (NODES_OF_2 | {"NODE_RANK": "0", "LOCAL_RANK": "2"}, "process 2 of node 0, rank 2 among 4"),
        (NODES_OF_2 | {"NODE_RANK": "-1"}, "NODE_RANK is '-1'"),
        (NODES_OF_2 | {"WORLD_SIZE": "x"}, "WORLD_SIZE is 'x'"),
        (HERE | {"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 among 2 processes"),
        (HERE | {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "local rank 2 among 2"),
        (
            HERE | {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"},
            "4 processes are on this node, and 2",
        ),
        ({"RANK": "3", "WORLD_SIZE": "1"}, "rank 3 among 1 processes"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        place(given, per_node=2)


@pytest.mark.parametrize(
    "given",
    [
        {},
        HERE,
        {"MASTER_ADDR": "10.0.0.1"},
        {"RANK": "0"},
        {"WORLD_SIZE": "1"},
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "NODE_RANK": "0"},
        {"NODE_RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"},
        {"RANK": "", "LOCAL_RANK": " ", "MASTER_ADDR": ""},
        HERE | {"WORLD_SIZE": "2", "NODE_RANK": "0"},
    ],
)
def test_leftovers_that_lose_nothing_leave_a_run_as_it_is(given: dict[str, str]) -> None:
    assert not is_one_of_several(given)
    assert Env.detect(given) is None
    plan = LaunchPlan(2)
    assert Node(given).complete_plan(plan) == plan
    assert (Node.detect(given) is None) == (
        not {name for name in given if given[name].strip()} - {"RANK", "LOCAL_RANK"}
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"WORLD_SIZE": "4"},
            "WORLD_SIZE=4 say that there are 4 processes, but this run starts 2 on each of 1",
        ),
        ({"LOCAL_WORLD_SIZE": "4"}, "4 processes per node, but this run starts 2"),
        ({"NODE_RANK": "1"}, "those of node 1, but .* set num_nodes"),
        ({"GROUP_RANK": "1"}, "GROUP_RANK=1 are those of node 1"),
        (THERE | {"NODE_RANK": "0"}, "WORLD_SIZE isn't set, and this run starts 2 on each of 1 nodes"),
        ({"NODE_RANK": "x"}, "NODE_RANK is 'x'"),
    ],
)
def test_one_of_several_nodes_isn_t_a_run_of_its_own(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Node(given).complete_plan(LaunchPlan(2))


def test_one_command_per_node_says_where_the_nodes_meet() -> None:
    plan = LaunchPlan(2, num_nodes=2)
    given = THERE | {"NODE_RANK": "1", "WORLD_SIZE": "4"}
    done = Node(given).complete_plan(plan)
    assert (done.node_rank, done.rdzv_endpoint) == (1, "10.0.0.1:29500")
    assert Node(THERE).complete_plan(plan).rdzv_endpoint == "10.0.0.1:29500"
    said = LaunchPlan(2, num_nodes=2, node_rank=0, rdzv_endpoint="other:1")
    assert Node(given).complete_plan(said) == said
    with pytest.raises(UsageError, match="NODE_RANK=1, MASTER_ADDR=a are set, but MASTER_PORT isn't"):
        Node({"NODE_RANK": "1", "MASTER_ADDR": "a"}).complete_plan(plan)
    with pytest.raises(UsageError, match="6 processes, but this run starts 2 on each of 2 nodes"):
        Node(given | {"WORLD_SIZE": "6"}).complete_plan(plan)
    elastic = LaunchPlan(2, num_nodes=4, min_nodes=1, rdzv_endpoint="other:1")
    assert Node(given).complete_plan(elastic).node_rank == 1
