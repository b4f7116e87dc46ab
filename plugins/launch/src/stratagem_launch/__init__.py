"""Processes of this node, which are started, supervised and restarted together.

For plugins that start processes of their own: tasks sent to them (`sending`, `loads`), folders that are cleared up
after a kill (`folder_lock`), a fork server, processes that end with their parent. Names are imported when they
are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_launch.elastic import ElasticLauncher
    from stratagem_launch.fork_server import preload_fork_server
    from stratagem_launch.guard import die_with
    from stratagem_launch.leftovers import folder_lock
    from stratagem_launch.rendezvous.network import loopback_variables
    from stratagem_launch.transfer.pickling import loads, sending

_WHERE = {
    "ElasticLauncher": "elastic",
    "die_with": "guard",
    "folder_lock": "leftovers",
    "loads": "transfer.pickling",
    "loopback_variables": "rendezvous.network",
    "preload_fork_server": "fork_server",
    "sending": "transfer.pickling",
}

__all__ = [
    "ElasticLauncher",
    "die_with",
    "folder_lock",
    "loads",
    "loopback_variables",
    "preload_fork_server",
    "sending",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
