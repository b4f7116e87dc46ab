"""Checks that the package deepspeed is installed, and imports it for a device."""

from __future__ import annotations

import os
import sys
import warnings
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import importlib_metadata

from stratagem import ConfigError, DeviceError
from stratagem_deepspeed import output
from stratagem_deepspeed.plugin import INSTALL

OLDEST, NEWEST = (0, 19, 8), (0, 20)
"""Tested versions: from OLDEST to below NEWEST."""


def require() -> None:
    """Refuse a run if deepspeed is missing or too old, and warn if it is newer than tested. Imports nothing.

    Raises:
        ConfigError: names the installed version, if any, and what to install.
    """
    try:
        there = find_spec("deepspeed") is not None
        version = importlib_metadata.version("deepspeed") if there else ""
    except (ImportError, ValueError):
        there, version = False, ""
    if not there:
        raise ConfigError(
            f"strategy 'deepspeed' needs the package deepspeed, which isn't installed: {INSTALL}"
        )
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())
    if numbers < OLDEST:
        raise ConfigError(
            f"strategy 'deepspeed' needs deepspeed {'.'.join(map(str, OLDEST))} or newer, and {version} is "
            f"installed: {INSTALL} --upgrade"
        )
    if numbers >= NEWEST:
        warnings.warn(
            f"deepspeed {version} is newer than what this strategy was tried with (below "
            f"{'.'.join(map(str, NEWEST))})",
            UserWarning,
            stacklevel=2,
        )


def load(device_type: str) -> ModuleType:
    """Import the engine for "cpu" or "cuda".

    Raises:
        DeviceError: this process has already imported it for another device type.
    """
    # With the variable set, DeepSpeed doesn't probe for accelerators or warn about what it found.
    os.environ.setdefault("DS_ACCELERATOR", device_type)
    with output.kept():
        import deepspeed

        name = _accelerator_name()
        _without_shared_memory(device_type)
    if name != device_type:
        raise DeviceError(
            f"deepspeed works on {name} in this process, and the run is on {device_type}: choose that accelerator, "
            "or unset DS_ACCELERATOR"
        )
    engine: ModuleType = deepspeed
    return engine


def _accelerator_name() -> str:
    from deepspeed.accelerator import get_accelerator

    name: str = get_accelerator().device_name()
    return name.split(":")[0]


@lru_cache(maxsize=1)
def _without_shared_memory(device_type: str) -> None:
    """Make CPU processes use gloo for their collectives.

    Otherwise the engine compiles its own extension for them, which takes minutes.
    """
    if device_type == "cpu":
        import deepspeed.ops

        ops: dict[str, Any] = deepspeed.ops.__compatible_ops__
        ops["deepspeed_shm_comm"] = False


def forget_groups() -> None:
    """Drop DeepSpeed's references to a process group that has been closed."""
    if "deepspeed" not in sys.modules:
        return
    from stratagem_deepspeed.deepspeed_private import forget_process_groups

    forget_process_groups()
