"""`LauncherWrapper`: the base class for results of wrappers of the `launch` hook."""

from __future__ import annotations

from typing import Any

from stratagem.launchers.base import Launcher, Task
from stratagem.plugin.forwarding import forwards


@forwards
class LauncherWrapper(Launcher):
    """Forwards every call to `inner`; a subclass overrides what it changes.

    Args:
        inner: the result of the wrapped implementation.
    """

    def __init__(self, inner: Launcher) -> None:
        self.inner = inner

    def launch(self, task: Task) -> Any:
        return self.inner.launch(task)
