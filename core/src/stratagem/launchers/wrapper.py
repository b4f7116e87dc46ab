"""`LauncherWrapper`: the base of what a wrapper of the hook `launch` returns."""

from __future__ import annotations

from typing import Any

from stratagem.launchers.base import Launcher, Task


class LauncherWrapper(Launcher):
    """Hands every call on to `inner`; a subclass overrides what it changes.

    Args:
        inner: what the wrapped implementation answered with.
    """

    def __init__(self, inner: Launcher) -> None:
        self.inner = inner
        self.in_process, self.worker_environment = inner.in_process, inner.worker_environment
        self.keeps_output = inner.keeps_output

    def launch(self, task: Task) -> Any:
        return self.inner.launch(task)
