"""What workers leave for those that are started in their place after a failure or a change of nodes."""

from __future__ import annotations

import json
import os
from typing import Any

from stratagem.launchers.launch_dir import LaunchDir

LAUNCH_VARIABLE = "STRATAGEM_LAUNCH"
"""Where a worker of `ElasticLauncher` finds the folder of its launch on this node."""


def can_save_restart_state() -> bool:
    """Whether this process was started by a launcher that may start another one in its place."""
    return LAUNCH_VARIABLE in os.environ


def save_restart_state(name: str, content: dict[str, Any]) -> None:
    """Leave JSON values for the next attempts on this node, in place of what `name` was before."""
    if can_save_restart_state():
        LaunchDir(os.environ[LAUNCH_VARIABLE]).put(f"restart.{name}", json.dumps(content).encode())


def restart_state(name: str) -> dict[str, Any] | None:
    """Return what an attempt before this one left on this node; None if none did."""
    if not can_save_restart_state():
        return None
    try:
        state: dict[str, Any] = json.loads(LaunchDir(os.environ[LAUNCH_VARIABLE]).get(f"restart.{name}"))
    except FileNotFoundError:
        return None
    return state
