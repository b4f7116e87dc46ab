"""For extensions that replace forwards of the user's modules during a run: select blocks, and restore forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from stratagem import ConfigError, Prepared, PreparedWrapper
from stratagem_sharding.wrap_policy import Policy, modules_named

__all__ = ["OwnForwards", "UndonePrepared", "blocks_of"]


def blocks_of(root: nn.Module, modules: Policy, advice: str) -> list[nn.Module]:
    """Return the blocks of a module: those that `modules` selects, or the default ones.

    Args:
        root: the user's module.
        modules: as the user gave it. None selects the elements of each ModuleList, and those elements of each
            Sequential that have children.
        advice: what to do if there are no blocks, as the end of a sentence.

    Raises:
        ConfigError: there are no blocks.
    """
    blocks = modules_named(root, modules, "modules")
    if not blocks:
        raise ConfigError(
            f"{type(root).__name__} has no ModuleList, and no Sequential of composed modules, whose elements "
            f"could be the blocks: {advice}"
        )
    return blocks


class OwnForwards:
    """Remembers the current forwards of modules, to restore them later.

    Args:
        modules: the modules, before their forwards are replaced.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._own: list[tuple[nn.Module, Any]] = [(each, vars(each).get("forward")) for each in modules]

    def restore(self) -> None:
        """Restore each module's own forward: its instance attribute, or that of its class."""
        for module, forward in self._own:
            if forward is None:
                # patch: replaced forwards
                vars(module).pop("forward", None)
            else:
                # patch: replaced forwards
                vars(module)["forward"] = forward
        self._own.clear()


class UndonePrepared(PreparedWrapper):
    """Undoes an extension's changes once the run has released the module.

    Args:
        inner: the `Prepared` of the strategy or of another extension.
        undo: called once, after `inner` is released.
    """

    def __init__(self, inner: Prepared, undo: Callable[[], None]) -> None:
        super().__init__(inner)
        self._undo = undo

    def release(self) -> None:
        """Release `inner`, then undo."""
        self.inner.release()
        self._undo()
