"""Starting the processes of a run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratagem.launch.base import Launcher, LaunchPlan, Task

if TYPE_CHECKING:
    from stratagem.launch.elastic import ElasticLauncher as ElasticLauncher
    from stratagem.launch.fork_server import preload_fork_server as preload_fork_server
    from stratagem.launch.in_process import InProcessLauncher as InProcessLauncher

__all__ = ["LaunchPlan", "Launcher", "Task"]

_LAZY = {
    "ElasticLauncher": "stratagem.launch.elastic",
    "InProcessLauncher": "stratagem.launch.in_process",
    "preload_fork_server": "stratagem.launch.fork_server",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
