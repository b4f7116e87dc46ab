"""Names of a package that are imported when they are first used, so that importing the package loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names come from elsewhere.

    Args:
        package: its `__name__`.
        homes: module → its names that the package has, with spaces between them. A module that begins with a dot
            is below the package.
    """
    where = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = where[name]
        found = import_from(f"{package}{home}" if home.startswith(".") else home, name)
        # Kept in the package, so that Python finds it there and doesn't call `get` again.
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted(where)


def import_from(module: str, name: str, what: str = "") -> Any:
    """Import `name` of a module here or in another distribution of ours; `what` is how an error calls it.

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
