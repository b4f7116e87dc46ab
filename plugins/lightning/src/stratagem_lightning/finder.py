"""Creates the submodules that names.py lists. Each of their names is imported at its first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stratagem.sdk.lazy import import_from
from stratagem_lightning.absent import is_absent, reason_for
from stratagem_lightning.names import MODULES

ROOT = "stratagem_lightning"


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        below = fullname.removeprefix(f"{ROOT}.")
        if below == fullname:
            return None
        if below not in MODULES:
            module, _, name = below.rpartition(".")
            if is_absent(module, name):
                raise ModuleNotFoundError(reason_for(module, name), name=fullname)
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        below = module.__name__.removeprefix(f"{ROOT}.")
        module.__doc__ = f"What Lightning has in lightning.{below}: stratagem_lightning/names.py."
        getter, lister, names = names_of(module.__name__)
        vars(module).update(__getattr__=getter, __dir__=lister, __all__=names)


def install() -> None:
    """Make the submodules importable. A second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # patch: lightning imports
        sys.meta_path.append(_Finder())


def names_of(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module of this package."""
    below = module.removeprefix(ROOT).removeprefix(".")
    where = MODULES[below]
    inside = [name for name in MODULES if name and name.rpartition(".")[0] == below]
    submodules = {name.rpartition(".")[2] for name in inside}

    def getter(name: str) -> Any:
        if name in where:
            home, _, attribute = where[name].partition(":")
            value = import_from(home, attribute or name)
        elif name in submodules:
            value = import_module(f"{module}.{name}")
        elif is_absent(
            below, name
        ):  # an AttributeError would lose the reason: `from … import` replaces its message
            raise ImportError(reason_for(below, name))
        else:
            raise AttributeError(reason_for(below, name))
        vars(sys.modules[module])[name] = value
        return value

    def lister() -> list[str]:
        return sorted({*where, *submodules})

    return getter, lister, sorted(where)
