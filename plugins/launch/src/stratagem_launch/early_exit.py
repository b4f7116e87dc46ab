"""`os._exit(0)` of a worker that hasn't finished: a failure that is otherwise not reported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from stratagem_launch.launch_dir import LaunchDir


@contextlib.contextmanager
def early_exits_fail(launch_dir: LaunchDir, attempt: int, rank: int) -> Iterator[None]:
    """Within this, `os._exit(0)` leaves a mark and ends this process with code 1 instead.

    Torch elastic takes code 0 for success, and then waits without end for the value that such a
    process didn't return. Processes that this one forks exit as they like.
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
