"""`RankInfo`: this process's position in a run, and the base of environments whose constructor sets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratagem.environments.base import Environment
from stratagem.errors import UsageError

DERIVED_PORTS = range(15000, 25000)
"""The range of ports that are derived from a job's number, below the ephemeral ports of every common system."""


MOST_PROCESSES = 1_000_000
"""More processes than any run has. A larger number is a mistake."""


@dataclass(frozen=True)
class RankInfo:
    """Position of one process. The constructor checks that it is possible."""

    global_rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    main_address: str
    main_port: int

    def __post_init__(self) -> None:
        if self.world_size > MOST_PROCESSES:
            raise UsageError(
                f"the launcher says that the run has {self.world_size} processes; at most {MOST_PROCESSES} are "
                "believed: correct or unset WORLD_SIZE or its like"
            )
        if self.main_port > 65535:
            raise UsageError(
                f"the launcher says that the ranks meet at port {self.main_port}; the highest is 65535: correct or "
                "unset MASTER_PORT"
            )
        _check_below("rank", self.global_rank, "processes", self.world_size)
        _check_below("local rank", self.local_rank, "processes on this node", self.local_world_size)
        if self.local_world_size > self.world_size:
            raise UsageError(
                f"the launcher says that {self.local_world_size} processes are on this node, and {self.world_size} "
                "altogether: the variables of two launchers may be mixed up"
            )


def _from_info(name: str) -> Any:
    return property(lambda self: getattr(self.info, name), doc=getattr(Environment, name).__doc__)


class LauncherEnvironment(Environment):
    """An environment whose constructor sets `info`."""

    info: RankInfo

    global_rank = _from_info("global_rank")
    local_rank = _from_info("local_rank")
    node_rank = _from_info("node_rank")
    world_size = _from_info("world_size")
    local_world_size = _from_info("local_world_size")
    main_address = _from_info("main_address")
    main_port = _from_info("main_port")


def derived_port(job: int, step: int = 0) -> int:
    """Return the port of the store for the ranks of a job step. It is the same on every rank.

    16 steps of a job, and the jobs with the next numbers, get different ports, so that jobs on the same node don't
    connect to each other.

    Args:
        job: the scheduler's number of the job.
        step: number of the step within the job.
    """
    return DERIVED_PORTS[(job * 16 + step % 16) % len(DERIVED_PORTS)]


def _check_below(what: str, value: int, things: str, count: int) -> None:
    if not 0 <= value < count:
        raise UsageError(
            f"the launcher gave this process {what} {value} among {count} {things}; it must be at least 0"
            f" and less than {count}: the variables of two launchers may be mixed up, or WORLD_SIZE is too small"
        )
