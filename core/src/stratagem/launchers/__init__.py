"""Starting the processes of a run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratagem.launchers.base import Launcher, LaunchPlan, Task

if TYPE_CHECKING:
    from stratagem.launchers.elastic import ElasticLauncher as ElasticLauncher
    from stratagem.launchers.fork_server import preload_fork_server as preload_fork_server
    from stratagem.launchers.in_process import InProcessLauncher as InProcessLauncher

__all__ = ["LaunchPlan", "Launcher", "Task"]

_LAZY = {
    "ElasticLauncher": "stratagem.launchers.elastic",
    "InProcessLauncher": "stratagem.launchers.in_process",
    "preload_fork_server": "stratagem.launchers.fork_server",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
