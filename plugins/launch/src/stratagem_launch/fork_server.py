"""One process per node that has imported torch, and forks each worker in some hundredths of a second."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Iterable
from multiprocessing import forkserver, util

from stratagem.errors import UsageError
from stratagem_launch.guard import stop_signals_ignored

_LONGEST_SOCKET = 107
"""Bytes of a socket's path: Linux, unix(7)."""
OWNER = "STRATAGEM_FORK_SERVER_OWNER"
"""Set, while the server is started, to the id of the process whose end is to end the server."""

_FIRST = ("stratagem_launch.server",)
_ALWAYS = ("torch.distributed.elastic.multiprocessing.api", "stratagem_launch.worker")


def preload_fork_server(modules: Iterable[str] = ("torch",)) -> None:
    """Start the fork server now, and let it import modules while this process continues.

    Returns at once. Called in the launching process, as early as it is known that workers will be
    started; a server that already runs is left as it is. The modules must touch no device, and must
    do nothing on import that a worker may not inherit. Those that can't be imported are left out.

    Args:
        modules: names of modules, imported once per node.

    Raises:
        UsageError: the folder for temporary files has too long a name for sockets in it.
    """
    _keep_sockets_private()
    _refuse_long_paths()
    names = [*_FIRST, *modules, *_ALWAYS]
    multiprocessing.set_forkserver_preload(list(dict.fromkeys(names)))
    # The kernel would end the server with the thread that starts it: only ask for it in the main one.
    before = os.environ.pop(OWNER, None)
    if threading.current_thread() is threading.main_thread():
        os.environ[OWNER] = str(os.getpid())
    try:
        # It also starts Python's resource tracker, which by default ignores only SIGTERM and SIGINT.
        with stop_signals_ignored():
            forkserver.ensure_running()
    finally:
        os.environ.pop(OWNER, None)
        if before is not None:
            os.environ[OWNER] = before


def _refuse_long_paths() -> None:
    """Without this the server ends in a traceback, and loaders' workers wait for ever."""
    longest = os.path.join(util.get_temp_dir(), "listener-12345678")
    if len(os.fsencode(longest)) > _LONGEST_SOCKET:
        raise UsageError(
            f"TMPDIR is {tempfile.gettempdir()!r}, and sockets in a folder in it would have paths of "
            f"{len(os.fsencode(longest))} bytes, where the system allows {_LONGEST_SOCKET}: set TMPDIR to a "
            "shorter one"
        )


def own_fork_servers() -> None:
    """Make a fork server that this worker may start, as for a data loader, end with the worker.

    By itself it would stay as long as a process that it forked, and that one as long as the server.
    """
    _keep_sockets_private()
    multiprocessing.set_forkserver_preload([*_FIRST, "__main__", "torch"])
    os.environ[OWNER] = str(os.getpid())


def _keep_sockets_private() -> None:
    """Let multiprocessing put its sockets into a folder of this user.

    python/cpython#97514: before 3.10.9 and 3.11.1 every user of the machine could connect to a fork server.
    """
    util.abstract_sockets_supported = False  # type: ignore[misc]  # final, says typeshed
