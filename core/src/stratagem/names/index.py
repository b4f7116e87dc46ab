"""The index of known plugins: what to install for a name that isn't installed, and new names of settings.

The core doesn't know the names of plugins. A distribution that knows many of them declares an `Index` in the entry
point group `stratagem.index`. It is read only before an error is raised. Without an index, hints are general.
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
    """Data about plugins that may not be installed."""

    offers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Kind → name → the distribution that offers it."""
    launchers: Mapping[str, str] = field(default_factory=dict)
    """Variable that a launcher sets → the environment that reads it."""
    renamed: Callable[[Mapping[str, Any]], str] = _none_is_renamed
    """Gets settings and their values. Returns a sentence about those that have a new name; empty if none has."""

    def of_kind(self, kind: str) -> Mapping[str, str]:
        """Return name → distribution, for one kind of component."""
        return self.offers.get(kind, {})


@lru_cache(maxsize=1)
def known_plugins() -> Index:
    """Return the installed index, or an empty one."""
    import importlib_metadata  # not needed where nothing is missing

    for entry_point in importlib_metadata.entry_points(group=GROUP):
        found: Index = entry_point.load()
        return found
    return Index()
