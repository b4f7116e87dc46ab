"""States that workers save for the workers that replace them after a failure or a change of nodes."""

from __future__ import annotations

import json
import os
from typing import Any

LAUNCH_VARIABLE = "STRATAGEM_LAUNCH"
"""Variable with the folder of the launch on this node, if the launcher may restart workers."""


def can_save_restart_state() -> bool:
    """Return whether this process was started by a launcher that may restart it."""
    return LAUNCH_VARIABLE in os.environ


def save_restart_state(name: str, content: dict[str, Any]) -> None:
    """Save JSON values as `name` for the next attempts on this node; replaces earlier values."""
    if can_save_restart_state():
        unfinished = f"{_path(name)}.{os.getpid()}.unfinished"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(unfinished, _path(name))


def restart_state(name: str) -> dict[str, Any] | None:
    """Return the values that an earlier attempt on this node saved as `name`; None if there are none."""
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
