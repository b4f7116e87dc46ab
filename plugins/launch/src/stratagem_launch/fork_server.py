"""The fork server: one process per node that has imported torch, and forks a worker within hundredths of a second."""

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
"""Maximum length of a socket's path in bytes (Linux, unix(7))."""
OWNER = "STRATAGEM_FORK_SERVER_OWNER"
"""Variable set while the server is started: id of the process with which the server is to end."""

_FIRST = ("stratagem_launch.server",)
_ALWAYS = ("torch.distributed.elastic.multiprocessing.api", "stratagem_launch.worker")


def preload_fork_server(modules: Iterable[str] = ("torch",)) -> None:
    """Start the fork server now, and let it import modules while this process continues.

    Returns at once. Call it in the launching process as soon as it is known that workers will be started. A running
    server is left as it is. On import, the modules must not touch a device or do anything that a worker may not
    inherit. Modules that can't be imported are skipped.

    Args:
        modules: names of modules, imported once per node.

    Raises:
        UsageError: the path of the folder for temporary files is too long for sockets in it.
    """
    _keep_sockets_private()
    _refuse_long_paths()
    names = [*_FIRST, *modules, *_ALWAYS]
    multiprocessing.set_forkserver_preload(list(dict.fromkeys(names)))
    # The kernel would end the server with the thread that starts it: ask for that only in the main thread.
    before = os.environ.pop(OWNER, None)
    if threading.current_thread() is threading.main_thread():
        os.environ[OWNER] = str(os.getpid())
    try:
        # This also starts Python's resource tracker, which by default ignores only SIGTERM and SIGINT.
        with stop_signals_ignored():
            forkserver.ensure_running()
    finally:
        os.environ.pop(OWNER, None)
        if before is not None:
            os.environ[OWNER] = before


def _refuse_long_paths() -> None:
    """Refuse socket paths that are too long. The server would end in a traceback, and loader workers hang."""
    longest = os.path.join(util.get_temp_dir(), "listener-12345678")
    if len(os.fsencode(longest)) > _LONGEST_SOCKET:
        raise UsageError(
            f"TMPDIR is {tempfile.gettempdir()!r}, and sockets in a folder in it would have paths of "
            f"{len(os.fsencode(longest))} bytes, where the system allows {_LONGEST_SOCKET}: set TMPDIR to a "
            "shorter one"
        )


def own_fork_servers() -> None:
    """Make a fork server that this worker may start, for example for a data loader, end with the worker.

    Otherwise the server would live as long as the processes that it forked, and they as long as the server.
    """
    _keep_sockets_private()
    multiprocessing.set_forkserver_preload([*_FIRST, "__main__", "torch"])
    os.environ[OWNER] = str(os.getpid())


def _keep_sockets_private() -> None:
    """Let multiprocessing put its sockets into a folder of this user.

    python/cpython#97514: before 3.10.9 and 3.11.1 every user of the machine could connect to a fork server.
    """
    util.abstract_sockets_supported = False  # type: ignore[misc]  # final, says typeshed
