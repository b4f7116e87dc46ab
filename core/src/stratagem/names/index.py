"""The index of known plugins: what to install for a name that isn't here, and what is called otherwise now.

The core names no plugin. A distribution that knows many of them declares an `Index` in the group of entry points
`stratagem.index`; it is read where an error is about to be raised, and not before. Without one, hints are general.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

GROUP = "stratagem.index"
"""The group's name."""


def _none_is_renamed(settings: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True)
class Index:
    """What is known of plugins that may not be installed."""

    offers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Kind → name → the distribution that offers it."""
    launchers: Mapping[str, str] = field(default_factory=dict)
    """Variable that a launcher sets → the environment that reads it."""
    renamed: Callable[[Mapping[str, Any]], str] = _none_is_renamed
    """Says of settings with values how those are called now that have another name; empty where none has."""

    def of_kind(self, kind: str) -> Mapping[str, str]:
        """Name → distribution, of one kind of component."""
        return self.offers.get(kind, {})


@lru_cache(maxsize=1)
def known_plugins() -> Index:
    """Return the installed index, or an empty one."""
    import importlib_metadata  # not needed where nothing is missing

    for entry_point in importlib_metadata.entry_points(group=GROUP):
        found: Index = entry_point.load()
        return found
    return Index()
