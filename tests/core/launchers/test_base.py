"""What a launch is asked: a task, a plan, and how workers start."""

from __future__ import annotations

import dataclasses

import pytest

from stratagem.errors import ConfigError
from stratagem.launchers.base import START_METHODS, Launcher, LaunchPlan, Task, check_start_method


@pytest.mark.parametrize("method", START_METHODS)
def test_a_start_method_that_there_is_is_returned(method: str) -> None:
    assert check_start_method(method) == method


def test_another_start_method_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as raised:
        check_start_method("thread")
    assert str(raised.value) == "start_method='thread' must be one of forkserver, spawn, popen, fork"
    with pytest.raises(ConfigError, match=r"must be one of spawn, popen$"):
        check_start_method("fork", ("spawn", "popen"))


@pytest.mark.parametrize(
    ("plan", "is_single", "is_elastic", "world_size"),
    [
        (LaunchPlan(3), True, False, 3),
        (LaunchPlan(2, num_nodes=2), False, False, 4),
        (LaunchPlan(2, rdzv_endpoint="host:1"), False, False, 2),
        (LaunchPlan(2, num_nodes=4, min_nodes=1), False, True, 8),
        (LaunchPlan(2, num_nodes=4, min_nodes=4), False, False, 8),
        (LaunchPlan(2, num_nodes=4, min_nodes=5), False, False, 8),
        (LaunchPlan(2, num_nodes=1, min_nodes=1), True, False, 2),
    ],
)
def test_what_follows_from_a_plan(
    plan: LaunchPlan, is_single: bool, is_elastic: bool, world_size: int
) -> None:
    assert (plan.is_single_node, plan.is_elastic, plan.world_size) == (is_single, is_elastic, world_size)


def test_plans_and_tasks_share_nothing_and_are_fixed() -> None:
    first, second = LaunchPlan(1), LaunchPlan(1)
    assert first == second
    assert first.environ is not second.environ
    assert first.rdzv_conf is not second.rdzv_conf
    assert (first.max_restarts, first.num_nodes, first.log_dir) == (0, 1, None)
    assert first.start_method in START_METHODS
    assert "torch" in first.preload
    for made, name in ((first, "num_nodes"), (Task(print), "args")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, 2)
    task = Task(print)
    assert (task.args, task.may_exit, task.preload, task.notice) == ((), False, (), None)


class Least(Launcher):
    def launch(self, task: Task) -> None:
        return None


def test_a_launcher_starts_processes_keeps_no_output_and_prepares_nothing_unless_it_says_so() -> None:
    launcher = Least()
    assert (launcher.in_process, launcher.worker_environment, launcher.keeps_output) == (False, None, False)
    assert Least.preload(["no_such_module"]) is None
    with pytest.raises(TypeError, match=r"abstract.*launch"):
        type("Lacking", (Least,), {"launch": Launcher.launch})()
