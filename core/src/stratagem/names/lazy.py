"""Names of a package that are imported when they are first used, so that importing the package doesn't load torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose names are in other modules.

    Args:
        package: its `__name__`.
        homes: module → names in it that the package has, separated by spaces. A module that begins with a dot is
            below the package.
    """
    where = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = where[name]
        found = import_from(f"{package}{home}" if home.startswith(".") else home, name)
        # Keep it in the package, so that Python finds it there and doesn't call `get` again.
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted(where)


def import_from(module: str, name: str, what: str = "") -> Any:
    """Import `name` from a module of this or another distribution of ours. `what` is its name in errors.

    Raises:
        ImportError: the distribution isn't installed; says which.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        distribution = package.replace("_", "-")
        raise ImportError(
            f"{what or name} is in {distribution}, which is not installed: pip install {distribution}"
        ) from None
