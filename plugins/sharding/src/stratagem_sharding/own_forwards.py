"""Forwards of a user's modules that an extension replaces for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from stratagem import ConfigError, Prepared, PreparedWrapper
from stratagem_sharding.wrap_policy import Policy, modules_named

__all__ = ["OwnForwards", "UndonePrepared", "blocks_of"]


def blocks_of(root: nn.Module, modules: Policy, advice: str) -> list[nn.Module]:
    """Return the blocks of a module: those that `modules` names, or its own.

    Args:
        root: the user's module.
        modules: as the user gave it; None takes the elements of each ModuleList, and the elements of each Sequential
            that are composed themselves.
        advice: what to do where there are none, as the end of a sentence.

    Raises:
        ConfigError: there are none.
    """
    blocks = modules_named(root, modules, "modules")
    if not blocks:
        raise ConfigError(
            f"{type(root).__name__} has no ModuleList, and no Sequential of composed modules, whose elements "
            f"could be the blocks: {advice}"
        )
    return blocks


class OwnForwards:
    """The forwards that modules have now, to be given back.

    Args:
        modules: before their forwards are replaced.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._own: list[tuple[nn.Module, Any]] = [(each, vars(each).get("forward")) for each in modules]

    def give_back(self) -> None:
        """Let each module have its own forward again: that of its class, or one that it has as an attribute."""
        for module, forward in self._own:
            if forward is None:
                # patch: replaced forwards
                vars(module).pop("forward", None)
            else:
                # patch: replaced forwards
                vars(module)["forward"] = forward
        self._own.clear()


class UndonePrepared(PreparedWrapper):
    """Undoes what an extension has changed once the run has released the module.

    Args:
        inner: of the strategy, or of another extension.
        undo: called once.
    """

    def __init__(self, inner: Prepared, undo: Callable[[], None]) -> None:
        super().__init__(inner)
        self._undo = undo

    def release(self) -> None:
        """Release `inner`, then undo."""
        self.inner.release()
        self._undo()
