"""Messages between a node's launcher and its workers when other nodes join. Imports no torch."""

from __future__ import annotations

import contextlib
import time

from stratagem_launch.launch_dir import ROUND, LaunchDir

NOTICED_S = 1.0
"""How long a worker that was asked to stop waits for its agent to notice that nodes join."""
_NODES_COME = "nodes-come"
"""File with the number of the newest round whose workers the agent ends because nodes wait to join."""


class RunEndedError(Exception):
    """The run has ended while this node was spare."""


def note_nodes(launch_dir: LaunchDir, number: int) -> None:
    """Note that the agent is about to end the workers of a round."""
    launch_dir.put(_NODES_COME, str(number).encode())


def ends_for_nodes(launch_dir: LaunchDir, attempt: int) -> bool:
    """Return whether the agent ends this worker because nodes join; waits, since the agent may notice that late.

    If so, nothing reads the worker's return value, and torch would let it wait until it is killed after 30 s. A
    worker that returns before its agent notices would count as finished.

    Args:
        launch_dir: of this node's launch.
        attempt: the worker's round. The worker has saved and is about to end.
    """
    if not launch_dir.has(ROUND):
        return False
    deadline = time.monotonic() + NOTICED_S
    while True:
        with contextlib.suppress(FileNotFoundError):
            if int(launch_dir.get(_NODES_COME)) >= attempt:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
