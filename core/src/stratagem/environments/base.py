"""`Environment`: this process's rank among all processes of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

    from stratagem.launchers.base import LaunchPlan


@dataclass(frozen=True)
class RequestedSize:
    """How many processes a run asks for, as far as its settings tell without counting devices."""

    processes_per_node: int | None = None
    num_nodes: int | None = 1
    """None if nodes may come and go."""


class Environment(ABC):
    """Reads this process's rank from the variables that its launcher has set.

    An environment is a snapshot: it reads the mapping once, in its constructor, and never again.

    Args:
        environ: the process's environment variables.

    Raises:
        stratagem.errors.UsageError: a variable is missing or isn't a number; the message names it.
    """

    name: ClassVar[str]
    creates_processes: ClassVar[bool] = True
    """Whether this launcher has already made one process per rank, so that Stratagem makes none."""

    @classmethod
    @abstractmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        """Say why this is the environment, such as "RANK and TORCHELASTIC_RUN_ID are set"; None if it isn't."""

    @classmethod
    def detect_incomplete(cls, environ: Mapping[str, str]) -> str | None:
        """Say which of this launcher's variables are set and which are missing, if they show several processes.

        Called if no environment recognises the process. Return None if this launcher has started nothing here, or if
        a single process is right although there are several tasks, as in a batch script.
        """
        return None

    @abstractmethod
    def __init__(self, environ: Mapping[str, str]) -> None: ...

    @classmethod
    def for_run(cls, environ: Mapping[str, str], size: RequestedSize) -> Self:
        """Make the environment of a run. Override it if the environment depends on the run's size.

        Args:
            environ: the process's environment variables.
            size: the size that the run asks for.
        """
        return cls(environ)

    def complete_plan(self, plan: LaunchPlan) -> LaunchPlan:
        """Return how Stratagem starts processes, for an environment that hasn't started them.

        Args:
            plan: the plan from the run's settings alone.

        Raises:
            stratagem.errors.UsageError: the variables contradict the plan.
        """
        return plan

    @property
    @abstractmethod
    def global_rank(self) -> int:
        """Index of this process among all, from 0."""

    @property
    @abstractmethod
    def local_rank(self) -> int:
        """Index of this process among those of its node, from 0."""

    @property
    @abstractmethod
    def node_rank(self) -> int:
        """Index of this node among all, from 0."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of processes."""

    @property
    @abstractmethod
    def local_world_size(self) -> int:
        """Number of processes on this node."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """Host on which rank 0 runs."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """TCP port of the ranks' store."""

    @property
    def store_is_served(self) -> bool:
        """Whether another process, such as an elastic agent, already serves the store at `main_port`."""
        return False

    @property
    def store_file(self) -> str | None:
        """Path of a file that is used as the store instead, in a folder that only this user can access."""
        return None

    @property
    def run_secret(self) -> str | None:
        """A secret that only the processes of this run know. They authenticate each other by it."""
        return None

    @property
    def attempt(self) -> int:
        """How often this group of workers was started before. It is a prefix of every key in the store."""
        return 0
