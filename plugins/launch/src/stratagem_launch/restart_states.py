"""What workers leave for those that are started in their place after a failure or a change of nodes."""

from __future__ import annotations

import json
import os
from typing import Any

LAUNCH_VARIABLE = "STRATAGEM_LAUNCH"
"""Where a worker finds the folder of its launch on this node, if its launcher may start others in its place."""


def can_save_restart_state() -> bool:
    """Whether this process was started by a launcher that may start another one in its place."""
    return LAUNCH_VARIABLE in os.environ


def save_restart_state(name: str, content: dict[str, Any]) -> None:
    """Leave JSON values for the next attempts on this node, in place of what `name` was before."""
    if can_save_restart_state():
        unfinished = f"{_path(name)}.{os.getpid()}.unfinished"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(unfinished, _path(name))


def restart_state(name: str) -> dict[str, Any] | None:
    """Return what an attempt before this one left on this node; None if none did."""
    if not can_save_restart_state():
        return None
    try:
        with open(_path(name), encoding="utf-8") as file:
            state: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    return state


def _path(name: str) -> str:
    return os.path.join(os.environ[LAUNCH_VARIABLE], f"restart.{name}")
