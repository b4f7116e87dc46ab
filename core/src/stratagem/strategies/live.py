"""What a strategy says of the run that is live in this process: asked of the run's objects, kept in no strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stratagem.errors import StratagemError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from stratagem.accelerators.base import Accelerator
    from stratagem.checkpoint.base import Checkpointer
    from stratagem.collectives.base import Collectives
    from stratagem.precision.base import Precision
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


class LiveMembers:
    """What modules and callbacks read of a strategy while its run is live, as `trainer.strategy.model`.

    `accelerator`, `checkpoint_io` and `precision_plugin` are the run's objects then, and before and afterwards what
    the strategy was made with.
    """

    _accelerator: Accelerator | str | None
    _checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None
    _precision_plugin: Precision | str | None

    @property
    def accelerator(self) -> Accelerator | str | None:
        """The accelerator of the live run; otherwise what was given."""
        session = _SESSIONS.get(id(self))
        return self._accelerator if session is None else session.run.accelerator

    @accelerator.setter
    def accelerator(self, value: Accelerator | str | None) -> None:
        self._accelerator = value

    @property
    def checkpoint_io(self) -> Checkpointer | Callable[[Collectives], Checkpointer] | None:
        """The checkpointer of the live run; otherwise what was given."""
        session = _SESSIONS.get(id(self))
        return self._checkpoint_io if session is None else session.checkpointer

    @checkpoint_io.setter
    def checkpoint_io(self, value: Checkpointer | Callable[[Collectives], Checkpointer] | None) -> None:
        self._checkpoint_io = value

    @property
    def precision_plugin(self) -> Precision | str | None:
        """The precision of the live run; otherwise what was given."""
        session = _SESSIONS.get(id(self))
        return self._precision_plugin if session is None else session.precision

    @precision_plugin.setter
    def precision_plugin(self, value: Precision | str | None) -> None:
        self._precision_plugin = value

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
    def model(self) -> nn.Module:
        """What the strategy wraps the module in, as DistributedDataParallel; the module itself where in nothing.

        Raises:
            StratagemError: no run of this strategy is live in this process, or it has set up no module or several.
        """
        prepared, given = self._only_prepared("model")
        return prepared.original_module if prepared.module is given else prepared.module

    @property
    def lightning_module(self) -> nn.Module:
        """The user's module.

        Raises:
            StratagemError: as of `model`.
        """
        return self._only_prepared("lightning_module")[0].original_module

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that the live run steps; none where it doesn't train.

        Raises:
            StratagemError: as of `model`.
        """
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
