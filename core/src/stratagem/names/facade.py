"""Names that other distributions add to `stratagem`, by entry points.

An entry point `Trainer = "some_package.module:Trainer"` in the group `stratagem.names` makes that object available as
`stratagem.Trainer`. The group is read only when code uses a name that the core doesn't have.
"""

from __future__ import annotations

from pkgutil import iter_modules
from typing import Any

import stratagem
from stratagem.names.lazy import import_from

GROUP = "stratagem.names"
"""The group's name."""

_homes: dict[str, str] = {}
"""Name → "module:attribute". It is read once, because that takes 10 ms and jsonargparse tries many unknown names."""


def facade_names() -> dict[str, str]:
    """Return name → "module:attribute" of all names that installed distributions add to `stratagem`.

    Raises:
        ImportError: two distributions add the same name.
    """
    import importlib_metadata  # not needed for the core's names

    found: dict[str, str] = {}
    for each in importlib_metadata.entry_points(group=GROUP):
        if found.setdefault(each.name, each.value) != each.value:
            raise ImportError(
                f"two distributions add stratagem.{each.name}, as {found[each.name]} and as {each.value}: "
                "uninstall one"
            )
    return found


def facade_name(name: str) -> Any:
    """Import a name that a distribution adds to `stratagem`.

    Raises:
        AttributeError: no distribution adds it.
        ImportError: the distribution that has it isn't installed; or no distribution adds any names.
    """
    if not _homes and not _is_module(name):
        _homes.update(facade_names())
        if not _homes:
            # `from stratagem import NAME` drops the message of an AttributeError.
            raise ImportError(
                f"{name} is not a name of stratagem-core, and no distribution is installed that adds others to "
                "stratagem: pip install stratagem"
            )
    if name not in _homes:
        raise AttributeError(f"module 'stratagem' has no attribute {name!r}")
    module, _, attribute = _homes[name].partition(":")
    found = import_from(module, attribute)
    setattr(stratagem, name, found)  # from now on, Python finds it without calling `__getattr__`
    return found


def _is_module(name: str) -> bool:
    """Whether it is a module of the core: `from stratagem import sdk` looks for an attribute first."""
    return name in {module.name for module in iter_modules(stratagem.__path__)}
