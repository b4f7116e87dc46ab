"""Numbers of machines, and settings of the place where they meet."""

from __future__ import annotations

import pytest

from stratagem.errors import ConfigError
from stratagem.launchers.nodes import Nodes, node_count, node_unit, parse_num_nodes, parse_rdzv_conf


@pytest.mark.parametrize(
    ("asked", "nodes"), [(1, Nodes(1, 1)), ("3", Nodes(3, 3)), ("1:4", Nodes(1, 4)), ("2:2", Nodes(2, 2))]
)
def test_reads_a_number_or_the_least_and_the_most(asked, nodes):
    assert parse_num_nodes(asked) == nodes


def test_only_a_range_varies():
    assert parse_num_nodes("1:2").is_elastic
    assert not parse_num_nodes("2:2").is_elastic
    assert not parse_num_nodes(2).is_elastic


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("3:2", "write the smaller number first, as 2:3"),
        ("0:2", "at least 1 must take part"),
        (0, "at least 1 must take part"),
        (-1, "is not a number of machines"),
        ("1:2:3", "is not a number of machines"),
        ("1:", "is not a number of machines"),
        ("", "is not a number of machines"),
        (True, "is not a number of machines"),
    ],
)
def test_refuses_what_is_no_number_of_machines(asked, words):
    with pytest.raises(ConfigError, match=words):
        parse_num_nodes(asked)


def test_a_plain_number_in_text_becomes_one():
    assert (node_count("3"), node_count("1:4")) == (3, "1:4")
    with pytest.raises(ConfigError, match="at least 1"):
        node_count("0")


def test_reads_settings_of_the_meeting_place():
    assert parse_rdzv_conf(None) == {}
    assert parse_rdzv_conf("last_call_timeout=3, keep_alive_interval=1") == {
        "last_call_timeout": "3",
        "keep_alive_interval": "1",
    }


@pytest.mark.parametrize("text", ["soon", "=3", "join_timeout="])
def test_refuses_settings_without_a_key_or_a_value(text):
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        parse_rdzv_conf(text)


@pytest.mark.parametrize(
    ("rank_unit", "processes", "unit"), [(1, 3, 1), (2, 1, 2), (2, 4, 1), (4, 2, 2), (6, 4, 3), (3, 1, 3)]
)
def test_machines_come_and_go_in_units_of_whole_ranks(rank_unit, processes, unit):
    assert node_unit(Nodes(6, 12), rank_unit, processes) == unit


@pytest.mark.parametrize(
    ("nodes", "fitting"), [(Nodes(1, 4), "as in 2:4"), (Nodes(2, 5), "as in 2:4"), (Nodes(1, 2), "as in 2:4")]
)
def test_refuses_numbers_of_machines_that_make_no_whole_units(nodes, fitting):
    with pytest.raises(ConfigError, match=f"must be multiples of 2, {fitting}"):
        node_unit(nodes, 2, 1)
