"""Report `os._exit(0)` in an unfinished worker as a failure, which torch elastic takes for success."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from stratagem_launch.launch_dir import LaunchDir


@contextlib.contextmanager
def early_exits_fail(launch_dir: LaunchDir, attempt: int, rank: int) -> Iterator[None]:
    """Make `os._exit(0)` record an event and end this process with code 1. A context manager.

    Torch elastic takes exit code 0 for success, and then waits forever for the return value of such a process.
    Processes that this one forks are unaffected.
    """
    exit_now, own = os._exit, os.getpid()

    def marked_exit(status: int) -> None:
        if status == 0 and os.getpid() == own:
            with contextlib.suppress(OSError):
                launch_dir.mark("exited", attempt, rank)
            status = 1
        exit_now(status)

    os._exit = marked_exit  # type: ignore[assignment]  # typeshed: it never returns
    try:
        yield
    finally:
        os._exit = exit_now
