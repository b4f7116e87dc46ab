"""One command per node, started by hand."""

from __future__ import annotations

import pytest
from stratagem_clusters import Node

from stratagem import LaunchPlan
from stratagem.errors import UsageError

NODE = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_it_is_alone_on_its_node_and_leaves_the_processes_to_stratagem() -> None:
    node = Node(NODE)
    assert (node.global_rank, node.local_rank, node.node_rank) == (0, 0, 1)
    assert (node.world_size, node.local_world_size, node.main_port) == (1, 1, 0)
    assert (Node.name, Node.creates_processes, Node({}).node_rank) == ("node", False, 0)
    with pytest.raises(UsageError, match="NODE_RANK is 'x'"):
        Node(NODE | {"NODE_RANK": "x"})


def test_it_is_detected_by_what_says_more_than_a_rank() -> None:
    assert Node.detect(NODE) == "NODE_RANK=1, MASTER_ADDR=10.0.0.1, MASTER_PORT=29500 are set"
    for nothing in ({}, {"RANK": "0"}, {"LOCAL_RANK": "0"}, {"NODE_RANK": " "}):
        assert Node.detect(nothing) is None


def test_nodes_meet_where_the_variables_say() -> None:
    environ = dict(NODE)
    node = Node(environ)
    environ.clear()
    plan = node.complete_plan(LaunchPlan(2, num_nodes=2))
    assert (plan.node_rank, plan.rdzv_endpoint) == (1, "10.0.0.1:29500")
    assert Node({}).complete_plan(LaunchPlan(2)) == LaunchPlan(2)
