"""Messages between a node's launcher and its workers when other nodes join, without torch."""

from __future__ import annotations

import contextlib
import time

from stratagem_launch.launch_dir import ROUND, LaunchDir

NOTICED_S = 1.0
"""How long a worker that was asked to stop waits for its agent to notice that nodes come."""
_NODES_COME = "nodes-come"
"""File with the number of the newest round whose workers the agent ends because nodes wait to take part."""


class RunEndedError(Exception):
    """The run has ended while this node was a spare one."""


def note_nodes(launch_dir: LaunchDir, number: int) -> None:
    """Note that the agent is about to end the workers of a round."""
    launch_dir.put(_NODES_COME, str(number).encode())


def ends_for_nodes(launch_dir: LaunchDir, attempt: int) -> bool:
    """Whether the agent ends this worker because nodes come, which it may notice after the worker's peers stopped.

    Then nothing reads what the worker returns, and torch would let it wait for that until it is killed, after 30 s.
    A worker that returns before its agent notices would be one that has finished its part.

    Args:
        launch_dir: of this node's launch.
        attempt: the round of the worker, which has saved and is about to end.
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
