"""All hooks, in one file: this is the whole extension surface of Stratagem.

A run has five hooks. Each is answered once, with an object that the loop then calls. Nothing here
runs per step: a hook call costs about 3 µs, a method call 0.05 µs.

To change what another plugin answers, wrap its hook::

    class Tracing:
        @stratagem.hookimpl(wrapper=True)
        def reduce(self, request):
            collectives = yield
            return TracedCollectives(collectives)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from stratagem.checkpoint.base import Checkpointer
    from stratagem.collectives.base import Collectives
    from stratagem.launchers.base import Launcher
    from stratagem.plugin.component import Component
    from stratagem.plugin.requests import (
        CheckpointRequest,
        LaunchRequest,
        PrecisionRequest,
        ReduceRequest,
        SetupRequest,
    )
    from stratagem.precision.base import Precision
    from stratagem.strategies.prepared import Prepared

PROJECT = "stratagem"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method or function as the implementation of the hook of its name."""


class RunHooks:
    """The five hooks of a run, in the order in which they are called.

    One implementation answers a hook; wrappers go around it. Of two wrappers of one hook the later one is around the
    earlier one: selected components come first, then `plugins=[...]` in the order of that list. A wrapper that must
    be outermost says so by `@hookimpl(wrapper=True, tryfirst=True)`, one that must be innermost by `trylast=True`.

    To see what hooks answer, wrap them and print: `print(f"reduce: {collectives}")` after the `yield`. A run calls
    each hook once per process, and `setup` once per module, so that this prints a few lines.
    """

    @hookspec(firstresult=True)
    def launch(self, request: LaunchRequest) -> Launcher:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Answer with the `Launcher` that makes this run's processes.

        Called in the launching process only, before any worker exists.

        Args:
            request: the number of processes, how to start them, and what this process finds around it.
        """

    @hookspec(firstresult=True)
    def reduce(self, request: ReduceRequest) -> Collectives:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Answer with the `Collectives` through which the ranks talk; opens the process group.

        Called in every worker, after its device has been set up. Collective.

        Args:
            request: this process's place among all, and its device.
        """

    @hookspec(firstresult=True)
    def precision(self, request: PrecisionRequest) -> Precision:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Answer with the `Precision` that converts, autocasts and scales.

        Called in every worker.

        Args:
            request: the precision's name and class, the device and the accelerator.
        """

    @hookspec(firstresult=True)
    def setup(self, request: SetupRequest) -> Prepared:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Answer with the `Prepared` module and optimizers: all that the loop calls per step.

        Called in every worker, once per module that is trained or evaluated. Collective.

        Args:
            request: the module, a factory for its optimizers, and what the loop is going to do.
        """

    @hookspec(firstresult=True)
    def checkpoint(self, request: CheckpointRequest) -> Checkpointer:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Answer with the `Checkpointer` that saves and opens checkpoints.

        Called in every worker. Collective.

        Args:
            request: the chosen checkpointer's class and the run's collectives.
        """


class CommandGroup(Protocol):
    """The click group that `stratagem_commands` is given."""

    def add_command(self, cmd: Any, name: str | None = None) -> None:
        """Add a `click.Command`, under its own name or another."""

    def add_lazy(self, name: str, target: str) -> None:
        """Add a command by where it is: `target` is "module:attribute" of a `click.Command`."""


class DiscoveryHooks:
    """What an entry point in the group `stratagem` implements; its module must not import torch."""

    @hookspec
    def stratagem_components(self) -> Sequence[Component]:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Return records of all components that the distribution offers."""

    @hookspec
    def stratagem_commands(self, cli: CommandGroup) -> None:
        """Add commands to the command line.

        Args:
            cli: the group `stratagem`, to be given commands by `cli.add_command`, or by `cli.add_lazy`, which
                imports a command when it is asked for.
        """


RUN_HOOKS: tuple[str, ...] = ("launch", "reduce", "precision", "setup", "checkpoint")

PROTOCOLS: Mapping[str, str] = {
    "launch": "stratagem.launchers.base:Launcher",
    "reduce": "stratagem.collectives.base:Collectives",
    "precision": "stratagem.precision.base:Precision",
    "setup": "stratagem.strategies.prepared:Prepared",
    "checkpoint": "stratagem.checkpoint.base:Checkpointer",
}
"""Hook → class of its answers; imported when there is one."""
