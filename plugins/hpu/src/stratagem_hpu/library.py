"""habana_frameworks as it is installed. Imports it only in `load` and `load_hccl`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stratagem_hpu.plugin import INSTALL, LIBRARY

DEVICE_FILES = ("/dev/accel", "/dev/habana")
"""Where the driver puts its processors: the first since Linux 6.2."""
MODULE_VARIABLE = "ID"
"""The variable that says which of its machine's processors a process gets."""


def problem() -> str | None:
    """Why Gaudi processors can't be used here; None where they can. Imports nothing."""
    if find_spec(LIBRARY) is None:
        return f"{LIBRARY} isn't installed: {INSTALL}"
    if not any(Path(path).exists() for path in DEVICE_FILES):
        return (
            f"{LIBRARY} is installed, but this machine has no Gaudi processor: no {' or '.join(DEVICE_FILES)}"
        )
    return None


def load() -> Any:
    """Import and return `habana_frameworks.torch.core`, which registers the device "hpu" with torch."""
    return import_module(f"{LIBRARY}.torch.core")


def load_hpu() -> Any:
    """Import and return `habana_frameworks.torch.hpu`: counts, memory, waiting."""
    load()
    return import_module(f"{LIBRARY}.torch.hpu")


def load_hccl() -> None:
    """Register the process group backend "hccl" with torch."""
    load()
    import_module(f"{LIBRARY}.torch.distributed.hccl")


def mark_step() -> None:
    """Send off what the lazy mode has collected; doesn't wait for it. Nothing in the eager mode."""
    load().mark_step()
