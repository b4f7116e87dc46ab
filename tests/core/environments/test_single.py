"""A process that nothing launched."""

from __future__ import annotations

from stratagem.environments.single import SingleProcess
from stratagem.launchers.base import LaunchPlan


def test_it_is_alone_whatever_is_set() -> None:
    alone = SingleProcess({"RANK": "nonsense", "WORLD_SIZE": "4"})
    assert (alone.global_rank, alone.local_rank, alone.node_rank) == (0, 0, 0)
    assert (alone.world_size, alone.local_world_size) == (1, 1)
    assert (alone.main_address, alone.main_port) == ("127.0.0.1", 0)


def test_it_fits_always_and_leaves_the_processes_to_stratagem() -> None:
    for environ in ({}, {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}):
        assert SingleProcess.detect(environ) == "no launcher has set its variables"
        assert SingleProcess(environ).complete_plan(LaunchPlan(2)) == LaunchPlan(2)
    assert (SingleProcess.name, SingleProcess.creates_processes) == ("single", False)
