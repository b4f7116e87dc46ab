"""`PeerMemory`: the extension `peer_memory`, which wraps two hooks of any run."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING

from stratagem import hookimpl
from stratagem_memory_checkpoint.checkpointer import PeerCheckpointer
from stratagem_memory_checkpoint.memory import UNIT_VARIABLE, VARIABLE, MemoryLauncher

if TYPE_CHECKING:
    from stratagem import Checkpointer, CheckpointRequest, Launcher, LaunchRequest


class PeerMemory:
    """Gives paths "peers://NAME" to memory: of each rank's node, and of the next node.

    The memory is a folder of the node's tmpfs that belongs to the launching process: it outlives workers, and
    goes when the launch is over. `MemoryCheckpoint` saves there.
    """

    @hookimpl(wrapper=True)
    def launch(self, request: LaunchRequest) -> Generator[None, Launcher, Launcher]:
        """Have the folder as long as workers may be started again."""
        return MemoryLauncher((yield), request.plan.node_unit)

    @hookimpl(wrapper=True)
    def checkpoint(self, request: CheckpointRequest) -> Generator[None, Checkpointer, Checkpointer]:
        """Save and open what is in memory; forward all other paths."""
        node_unit = int(os.environ.get(UNIT_VARIABLE, "1"))
        return PeerCheckpointer((yield), request.collectives, os.environ.get(VARIABLE), node_unit)
