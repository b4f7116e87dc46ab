"""Where a node keeps checkpoints in memory: a folder of its tmpfs, as long as the launching process lives."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from stratagem_launch import folder_lock

from stratagem import Launcher, LauncherWrapper, Task
from stratagem.errors import ConfigError

VARIABLE = "STRATAGEM_PEER_MEMORY"
"""Tells workers the folder of their node."""
UNIT_VARIABLE = "STRATAGEM_PEER_MEMORY_NODE_UNIT"
"""Tells workers how many nodes the run loses together."""
TMPFS_VARIABLE = "STRATAGEM_TMPFS"
"""Names another tmpfs than /dev/shm."""


class MemoryLauncher(LauncherWrapper):
    """Makes the folder before workers are started, and removes it after the last has ended.

    What a launching process that was killed has left is removed by the next launch on the node.

    Args:
        inner: what starts the workers.
        node_unit: number of nodes that the run loses together.
    """

    def __init__(self, inner: Launcher, node_unit: int = 1) -> None:
        super().__init__(inner)
        self._node_unit = node_unit

    def launch(self, task: Task) -> Any:
        tmpfs = os.environ.get(TMPFS_VARIABLE, "/dev/shm")
        if not os.path.isdir(tmpfs) or not os.access(tmpfs, os.W_OK):
            raise ConfigError(
                f"checkpoints in memory need a tmpfs, and {tmpfs} is none that can be written to: name one by "
                f"{TMPFS_VARIABLE}, or leave --checkpoint-memory out"
            )
        folder = tempfile.mkdtemp(prefix="stratagem-memory-", dir=tmpfs)
        variables = {VARIABLE: folder, UNIT_VARIABLE: str(self._node_unit)}
        before = {name: os.environ.get(name) for name in variables}
        try:
            with folder_lock(folder):
                os.environ.update(variables)
                return self.inner.launch(task)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            shutil.rmtree(folder, ignore_errors=True)
