"""What a strategy says of the run that is live in this process: asked of the run's objects, kept in no strategy."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from stratagem.errors import StratagemError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from stratagem.runtime.session import Session
    from stratagem.strategies.prepared import Prepared

_SESSIONS: dict[int, Session] = {}
"""Identity of a strategy → the session of its run that is live in this process."""


def show_session(strategy: LiveMembers, session: Session | None) -> None:
    """Have `strategy` answer from a session whose objects are all there; None when it closes."""
    if session is None:
        _SESSIONS.pop(id(strategy), None)
    else:
        _SESSIONS[id(strategy)] = session


class _Part:
    """An attribute that is the live run's own object during a run, and otherwise what was given."""

    def __init__(self, path: str) -> None:
        self._of_session = attrgetter(path)

    def __set_name__(self, owner: type, name: str) -> None:
        self._given = f"_{name}"

    def __get__(self, strategy: Any, owner: type | None = None) -> Any:
        if strategy is None:
            return self
        session = _SESSIONS.get(id(strategy))
        return getattr(strategy, self._given) if session is None else self._of_session(session)

    def __set__(self, strategy: Any, value: Any) -> None:
        setattr(strategy, self._given, value)


class LiveMembers:
    """What modules and callbacks read of a strategy while its run is live, as `trainer.strategy.model`."""

    accelerator = _Part("run.accelerator")
    checkpoint_io = _Part("checkpointer")
    precision_plugin = _Part("precision")

    @property
    def root_device(self) -> torch.device:
        """This rank's device in the live run, the first where it has several.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        session = _SESSIONS.get(id(self))
        if session is None:
            raise StratagemError(f"{type(self).__name__} has a device only during a run")
        return session.device

    @property
    def num_processes(self) -> int:
        """Processes of the live run on each of its machines.

        Raises:
            StratagemError: no run of this strategy is live in this process.
        """
        session = _SESSIONS.get(id(self))
        if session is None:
            raise StratagemError(f"{type(self).__name__} has num_processes only during a run")
        return session.run.plan.processes_per_node

    @property
    def model(self) -> nn.Module:
        """What the strategy wraps the module in, as DistributedDataParallel; the module itself where in nothing.

        Raises:
            StratagemError: (as `lightning_module`, `optimizers`) no run is live, or has set up not just one module.
        """
        prepared, given = self._only_prepared("model")
        return prepared.original_module if prepared.module is given else prepared.module

    @property
    def lightning_module(self) -> nn.Module:
        """The user's module."""
        return self._only_prepared("lightning_module")[0].original_module

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that the live run steps; none where it doesn't train."""
        return list(self._only_prepared("optimizers")[0].optimizers)

    def _only_prepared(self, name: str) -> tuple[Prepared, nn.Module]:
        """Return the one module that the live run has set up, and what the strategy was given to wrap."""
        session = _SESSIONS.get(id(self))
        found = [] if session is None else session.set_up_modules()
        if not found:
            raise StratagemError(
                f"{type(self).__name__} has {name} only during a run that has set up its module"
            )
        if len(found) > 1:
            raise StratagemError(
                f"{type(self).__name__} has {name} of one module, and this run has set up {len(found)}: ask what "
                "each `setup` returned"
            )
        return found[0]
