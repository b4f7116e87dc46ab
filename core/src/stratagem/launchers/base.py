"""`Launcher`: starts the processes of a run; the result of the `launch` hook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stratagem.errors import ConfigError
from stratagem.launchers.torch_private import COMPILER

StartMethod = Literal["forkserver", "spawn", "popen", "fork"]
START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)
"""How a node's workers may be started."""
RUN_SECRET_VARIABLE = "STRATAGEM_RUN_SECRET"
"""Environment variable with the run's secret, the same on all nodes. It isn't a flag, because other users can read a
command's flags."""


def check_start_method(given: str, allowed: Sequence[str] = START_METHODS) -> str:
    """Check how workers are started, and return it.

    Args:
        given: the user's value.
        allowed: the allowed values.

    Raises:
        ConfigError: `given` isn't allowed.
    """
    if given not in allowed:
        raise ConfigError(f"start_method={given!r} must be one of {', '.join(allowed)}")
    return given


@dataclass(frozen=True)
class Task:
    """The work of every worker: a call of `function(*args)`.

    The task is pickled once, unless workers are forked from the launching process.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    may_exit: bool = False
    """Whether single ranks may end by `sys.exit(0)`, as in a script. Otherwise all ranks must, or none."""
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports in addition to the plan's, such as the function's module."""
    notice: Callable[[Sequence[str]], None] | None = None
    """Called in the launching process with the names of functions and classes that are pickled by value."""


@dataclass(frozen=True)
class LaunchPlan:
    """How many processes, and how to start them."""

    processes_per_node: int
    num_nodes: int = 1
    """The maximum, if the number of nodes may change."""
    min_nodes: int | None = None
    """The minimum with which the run continues; `num_nodes` when None."""
    node_unit: int = 1
    """If the number of nodes may change, a multiple of this takes part. Further nodes wait until the number
    changes."""
    node_rank: int | None = None
    rdzv_endpoint: str | None = None
    rdzv_backend: str = "c10d"
    rdzv_conf: dict[str, str] = field(default_factory=dict)
    """Settings of the rendezvous, under torch's names."""
    run_id: str | None = None
    """Name of the run, the same on all its nodes. It is needed if a rendezvous serves several runs. Ranks
    authenticate each other by it, so keep it unguessable and private."""
    start_method: str = "forkserver"
    """forkserver, spawn, popen or fork."""
    max_restarts: int = 0
    preload: tuple[str, ...] = ("torch", COMPILER)
    """Modules that the fork server imports once per node. Without that, an optimizer's first step would import the
    second one in every rank."""
    environ: dict[str, str] = field(default_factory=dict)
    """Variables for every worker in addition to the launcher's own, such as from `Environment.complete_plan`."""
    log_dir: str | None = None
    """Folder for each rank's output, as `attempt_N/RANK/{stdout,stderr}.log`; None keeps none."""

    @property
    def is_single_node(self) -> bool:
        """Whether no other node takes part."""
        return self.num_nodes == 1 and self.rdzv_endpoint is None

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change."""
        return self.min_nodes is not None and self.min_nodes < self.num_nodes

    @property
    def world_size(self) -> int:
        """Number of processes; the maximum, if the number of nodes may change."""
        return self.processes_per_node * self.num_nodes


class Launcher(ABC):
    """Runs a task in every rank, and supervises the ranks."""

    in_process: bool = False
    """Whether the task runs in the calling process, so that the caller sees its changes to objects."""
    worker_environment: str | None = None
    """Name of the workers' environment; None means the caller's own."""

    keeps_output: bool = False
    """Whether the output of workers is kept in `LaunchPlan.log_dir`. If not, a run with a `log_dir` is refused."""

    @classmethod
    def preload(cls, modules: Sequence[str]) -> None:
        """Prepare for a launch that is likely. By default, do nothing.

        Called in the launching process, perhaps long before `launch`, and perhaps without one. It must return at
        once, and must not import anything slow.

        Args:
            modules: names of the modules that every worker will import.
        """

    @abstractmethod
    def launch(self, task: Task) -> Any:
        """Run `task` in every rank and return what global rank 0 returned.

        Called once per node; the value is only returned on the node of rank 0, None elsewhere.

        Raises:
            UsageError, SealError: a worker raised this error.
            WorkerError: a worker raised something else or was ended by a signal. By then no worker is left.
            KeyboardInterrupt: Ctrl-C, after all workers have ended.
        """
