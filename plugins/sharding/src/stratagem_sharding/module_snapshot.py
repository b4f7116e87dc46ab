"""`ModuleSnapshot`: removes the classes, hooks and attributes that a strategy set on a user's modules."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from stratagem_sharding.torch_private import MODULE_TABLES

__all__ = ["ModuleSnapshot"]

_ABSENT = object()


class ModuleSnapshot:
    """The state of modules before a strategy sets them up.

    Create it before the setup, call `note` after it, and `undo` at the end. Attributes and hooks that were added
    after `note` are the user's, and stay.

    Args:
        root: the module, with all its submodules.
        libraries: hooks whose functions come from these packages are removed even if they were added after `note`.
    """

    def __init__(self, root: nn.Module, libraries: tuple[str, ...] = ("torch.distributed.",)) -> None:
        self._libraries = libraries
        self._before = [(module, module.__class__, *_looked_at(module)) for module in root.modules()]
        self._after: list[tuple[dict[str, Any], dict[str, set[int]]]] = []

    def note(self) -> None:
        """Record what the strategy has changed so far; later changes are the user's."""
        self._after = [_looked_at(module) for module, *_ in self._before]

    def modules(self) -> list[nn.Module]:
        """Return the modules that existed when this snapshot was created."""
        return [module for module, *_ in self._before]

    def undo(self) -> None:
        """Restore classes, attributes and hooks. Parameters, buffers and submodules stay as they are."""
        for (module, cls, values, hooks), (set_up, hooked) in zip(self._before, self._after):
            # patch: module classes
            module.__class__ = cls
            now = module.__dict__
            for key in [key for key in now if key not in MODULE_TABLES and key not in hooked]:
                before, after = values.get(key, _ABSENT), set_up.get(key, _ABSENT)
                if after is before or now[key] is not after:
                    continue
                if before is _ABSENT:
                    del now[key]
                else:
                    now[key] = before
            for key in hooked:
                kept = hooks.get(key, set())
                for handle in [handle for handle in now[key] if handle not in kept]:
                    if handle in hooked[key] or self._is_theirs(now[key][handle]):
                        del now[key][handle]

    def original_of(self, module: nn.Module) -> tuple[type[nn.Module], dict[str, Any]]:
        """Return a module's class and attributes without the strategy's changes, to copy the module."""
        if is_parametrized(module):
            now = dict(module.__dict__)  # torch allows copies of these, but their `__getstate__` raises
        else:
            get_state = getattr(module, "__getstate__", None)  # every object has one from Python 3.11 on
            now = dict(module.__dict__ if get_state is None else get_state())
        at = next((at for at, (each, *_) in enumerate(self._before) if each is module), None)
        if at is None:
            return type(module), now
        (_, cls, values, hooks), (set_up, hooked) = self._before[at], self._after[at]
        for key in [key for key in now if key not in MODULE_TABLES and key not in hooked]:
            before, after = values.get(key, _ABSENT), set_up.get(key, _ABSENT)
            if after is before or now[key] is not after:
                continue
            if before is _ABSENT:
                del now[key]
            else:
                now[key] = before
        for key in [key for key in hooked if key in now]:
            kept = hooks.get(key, set())
            now[key] = type(now[key])(
                (handle, hook)
                for handle, hook in now[key].items()
                if handle in kept or not (handle in hooked[key] or self._is_theirs(hook) or _is_ours(hook))
            )
        return cls, now

    def _is_theirs(self, hook: Any) -> bool:
        # Torch wraps state dict hooks in an object.
        inner = getattr(hook, "hook", hook)
        return str(getattr(inner, "__module__", "")).startswith(self._libraries)


def _is_ours(hook: Any) -> bool:
    """Whether a hook that was added after `note` is a strategy's, which removes it itself."""
    while isinstance(hook, partial) or hasattr(
        hook, "__wrapped__"
    ):  # torch.compiler.disable sets __wrapped__
        hook = hook.func if isinstance(hook, partial) else hook.__wrapped__
    return str(getattr(hook, "__module__", "")).startswith("stratagem")


def _looked_at(module: nn.Module) -> tuple[dict[str, Any], dict[str, set[int]]]:
    """Return a module's attributes, and the ids of its hooks by the name of the dict that has them."""
    values, hooks = {}, {}
    for key, value in module.__dict__.items():
        if "_hooks" in key and isinstance(value, dict):
            hooks[key] = set(value)
        elif key not in MODULE_TABLES:
            values[key] = value
    return values, hooks
