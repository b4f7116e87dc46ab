"""The group of entry points in which plugins are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint

GROUP = "stratagem"
"""The group's name."""


LIBRARY_GROUPS = ("stratagem.index", "stratagem.optimizer_trial")
"""Groups of objects that the core imports from distributions that need not be plugins."""


def plugin_entry_points(group: str = GROUP) -> Iterator[tuple[EntryPoint, str, str]]:
    """Yield every entry point in a group, with its distribution's normalised name and version."""
    import importlib_metadata  # its import takes as long as reading all cached records

    for entry_point in importlib_metadata.entry_points(group=group):
        distribution = entry_point.dist
        if distribution is None:
            yield entry_point, entry_point.module, "0"
        else:
            # Parse it once: `distribution.name` and `.version` would each parse it again.
            metadata = distribution.metadata
            yield entry_point, normalise(metadata["Name"]), metadata["Version"]


def required_distributions(name: str) -> Iterator[str]:
    """Yield the normalised names of a distribution's dependencies, without those of its extras."""
    import importlib_metadata

    with suppress(importlib_metadata.PackageNotFoundError):  # an entry point may have no distribution
        for text in importlib_metadata.requires(name) or ():
            if "extra ==" not in text:
                yield normalise(re.split(r"[^\w.-]", text)[0])


def normalise(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
