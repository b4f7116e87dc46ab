"""What workers leave for those that are started in their place after a failure or a change of nodes."""

from __future__ import annotations

import json
import os
from typing import Any

from stratagem.launchers.exchange import Exchange

LAUNCH_VARIABLE = "STRATAGEM_LAUNCH"
"""Where a worker of `ElasticLauncher` finds the folder of its launch on this node."""


def can_leave_words() -> bool:
    """Whether this process was started by a launcher that may start another one in its place."""
    return LAUNCH_VARIABLE in os.environ


def leave_word(name: str, content: dict[str, Any]) -> None:
    """Leave JSON values for the next attempts on this node, in place of what `name` was before."""
    if can_leave_words():
        Exchange(os.environ[LAUNCH_VARIABLE]).put(f"word.{name}", json.dumps(content).encode())


def word_left(name: str) -> dict[str, Any] | None:
    """Return what an attempt before this one left on this node; None if none did."""
    if not can_leave_words():
        return None
    try:
        word: dict[str, Any] = json.loads(Exchange(os.environ[LAUNCH_VARIABLE]).get(f"word.{name}"))
    except FileNotFoundError:
        return None
    return word
