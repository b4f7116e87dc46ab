"""poptorch as it is installed. Imports it only in `load`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from stratagem_ipu.plugin import INSTALL, LIBRARY

POD_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of IPUs that a partition may have: powers of 2."""


def problem() -> str | None:
    """Why poptorch can't be used here; None where it can, as far as is known without importing it."""
    return f"{LIBRARY} isn't installed: {INSTALL}" if find_spec(LIBRARY) is None else None


def load() -> Any:
    """Import and return poptorch."""
    return import_module(LIBRARY)


def ipu_count() -> int:
    """How many IPUs this machine's partition has."""
    if problem():
        return 0
    available = load().ipuHardwareIsAvailable
    return max((count for count in POD_SIZES if available(count)), default=0)
