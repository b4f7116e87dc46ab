"""All hooks, in one file: this is the whole extension surface of Stratagem.

A run has five hooks. Each returns an object, and the loop then calls the object's methods. No hook runs per step: a
hook call costs about 3 µs, a method call 0.05 µs.

To change the object that another plugin returns, wrap its hook::

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

    A hook has one implementation, and any number of wrappers around it. Of two wrappers, the later one is around the
    earlier one: selected components come first, then `plugins=[...]` in the order of that list. Use
    `@hookimpl(wrapper=True, tryfirst=True)` for a wrapper that must be outermost, and `trylast=True` for one that
    must be innermost.

    To see the results of hooks, wrap them and print: `print(f"reduce: {collectives}")` after the `yield`. A run calls
    each hook once per process, and `setup` once per module, so that this prints a few lines.
    """

    @hookspec(firstresult=True)
    def launch(self, request: LaunchRequest) -> Launcher:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Return the `Launcher` that starts this run's processes.

        Called in the launching process only, before any worker exists.

        Args:
            request: the number of processes, how to start them, and the environment of this process.
        """

    @hookspec(firstresult=True)
    def reduce(self, request: ReduceRequest) -> Collectives:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Open the process group, and return the `Collectives` through which ranks communicate.

        Called in every worker, after its device has been set up. Collective.

        Args:
            request: this process's rank, and its device.
        """

    @hookspec(firstresult=True)
    def precision(self, request: PrecisionRequest) -> Precision:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Return the `Precision` that converts, autocasts and scales.

        Called in every worker.

        Args:
            request: the precision's name and class, the device and the accelerator.
        """

    @hookspec(firstresult=True)
    def setup(self, request: SetupRequest) -> Prepared:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Return the `Prepared` module and optimizers, which have all methods that the loop calls per step.

        Called in every worker, once per module that is trained or evaluated. Collective.

        Args:
            request: the module, a factory for its optimizers, and what the loop will do.
        """

    @hookspec(firstresult=True)
    def checkpoint(self, request: CheckpointRequest) -> Checkpointer:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Return the `Checkpointer` that saves and opens checkpoints.

        Called in every worker. Collective.

        Args:
            request: the chosen checkpointer's class and the run's collectives.
        """


class CommandGroup(Protocol):
    """The click group that `stratagem_commands` gets."""

    def add_command(self, cmd: Any, name: str | None = None) -> None:
        """Add a `click.Command`, under its own name or another."""

    def add_lazy(self, name: str, target: str) -> None:
        """Add a command that is imported when it is called: `target` is "module:attribute" of a `click.Command`."""


class DiscoveryHooks:
    """The hooks of an entry point in the group `stratagem`, whose module must not import torch."""

    @hookspec
    def stratagem_components(self) -> Sequence[Component]:  # type: ignore[empty-body]  # pluggy calls only implementations
        """Return records of all components that the distribution offers."""

    @hookspec
    def stratagem_commands(self, cli: CommandGroup) -> None:
        """Add commands to the command line.

        Args:
            cli: the group `stratagem`. Add commands with `cli.add_command`, or with `cli.add_lazy`, which imports a
                command when it is called.
        """


RUN_HOOKS: tuple[str, ...] = ("launch", "reduce", "precision", "setup", "checkpoint")

PROTOCOLS: Mapping[str, str] = {
    "launch": "stratagem.launchers.base:Launcher",
    "reduce": "stratagem.collectives.base:Collectives",
    "precision": "stratagem.precision.base:Precision",
    "setup": "stratagem.strategies.prepared:Prepared",
    "checkpoint": "stratagem.checkpoint.base:Checkpointer",
}
"""Hook → class of its results, imported when there is a result."""
