"""Names of the plugin API that are going to go: they work for one version more, and warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from stratagem.names.lazy import import_from
from stratagem.names.offered import MOVED


class Renamed:
    """An attribute of a class under its former name: reads what the present one has, and warns.

    Args:
        path: the present name, with dots for what is in a record of its own now.
        default: what it reads where there is no such record.
    """

    def __init__(self, path: str, default: Any = None) -> None:
        self._path, self._default = path, default

    def __set_name__(self, owner: type, name: str) -> None:
        self._message = f"{owner.__name__}.{name} is now called {owner.__name__}.{self._path}"

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        _warn(self._message)
        value: Any = instance
        for name in self._path.split("."):
            value = getattr(value, name)
            if value is None:
                return self._default
        return value


def replaced_names(module: str, replaced: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module some of whose names are elsewhere, or are called something else.

    Each name warns once per process, at the line that first asks for it.

    Args:
        module: its `__name__`.
        replaced: former name → "module:name" of what takes its place; those of `MOVED` when None.
    """
    present_names = MOVED[module] if replaced is None else replaced
    found: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in present_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if name not in found:
            where, _, present = present_names[name].partition(":")
            found[name] = import_from(where, present)
            _warn(f"{module}.{name} is now {where}.{present}")
        return found[name]

    return get


def _warn(message: str) -> None:
    warnings.warn(f"{message}; the former name goes with the next plugin API", DeprecationWarning, 3)
