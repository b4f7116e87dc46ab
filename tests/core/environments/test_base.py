"""What an environment answers that says only what it must."""

from __future__ import annotations

import pytest

from stratagem.environments.base import Environment, RequestedSize
from stratagem.launchers.base import LaunchPlan


class Least(Environment):
    name = "least"
    global_rank = local_rank = node_rank = 0
    world_size = local_world_size = 1
    main_address, main_port = "localhost", 1

    @classmethod
    def detect(cls, environ):
        return None

    def __init__(self, environ):
        self.environ = dict(environ)


def test_nothing_is_served_kept_or_restarted_unless_it_says_so() -> None:
    least = Least({})
    assert (least.store_is_served, least.store_file, least.run_secret, least.attempt) == (
        False,
        None,
        None,
        0,
    )
    assert least.creates_processes


def test_a_run_of_any_size_has_the_environment_of_its_variables() -> None:
    made = Least.for_run({"A": "1"}, RequestedSize(4, 2))
    assert type(made) is Least
    assert made.environ == {"A": "1"}
    plan = LaunchPlan(2)
    assert made.complete_plan(plan) is plan


def test_an_unknown_size_is_that_of_one_node() -> None:
    assert RequestedSize() == RequestedSize(processes_per_node=None, num_nodes=1)


@pytest.mark.parametrize("name", sorted(Environment.__abstractmethods__))
def test_what_has_to_be_defined(name: str) -> None:
    with pytest.raises(TypeError, match=f"abstract.*{name}"):
        type("Lacking", (Least,), {name: vars(Environment)[name]})({})


def test_no_part_of_a_place_is_left_to_chance() -> None:
    assert Environment.__abstractmethods__ == {
        *("detect", "__init__", "global_rank", "local_rank", "node_rank", "world_size", "local_world_size"),
        *("main_address", "main_port"),
    }
    for name, member in vars(Environment).items():
        if name in ("detect", "detect_incomplete", "for_run"):
            assert isinstance(member, classmethod)
        elif not name.startswith("_") and name not in ("creates_processes", "complete_plan"):
            assert isinstance(member, property), name
