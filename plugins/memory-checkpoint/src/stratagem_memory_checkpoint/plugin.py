"""What stratagem-memory-checkpoint offers: the extension `peer_memory`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The extension `peer_memory`, for `--checkpoint-memory`."""
    return [
        Component(
            "extension",
            "peer_memory",
            "stratagem_memory_checkpoint.extension:PeerMemory",
            "keeps checkpoints in the memory of each node and a neighbour, for restarts without a disk",
        )
    ]
