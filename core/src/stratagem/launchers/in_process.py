"""`InProcessLauncher`: for a single process, or if another launcher has made the processes."""

from __future__ import annotations

from typing import Any

from stratagem.launchers.base import Launcher, Task


class InProcessLauncher(Launcher):
    """Calls the task in the calling process. It doesn't wrap errors of the task."""

    in_process = True

    def launch(self, task: Task) -> Any:
        """Return what `task` returns, on every rank that calls."""
        return task.function(*task.args)
