"""`SingleNodeRendezvous`: a rendezvous for a single node that opens no port and unpickles nothing.

torch's own rendezvous would serve two stores on all interfaces, to anyone who connects, and unpickle a key of one.
"""

from __future__ import annotations

from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from stratagem.sdk.processes import LOOPBACK, free_port

BACKEND = "stratagem_single_node"
"""Name of this backend in torch's registry of rendezvous backends."""


class SingleNodeRendezvous(RendezvousHandler):
    """Rendezvous of a single agent. The agent's store is in memory; the workers' store is a file of the launch.

    Args:
        run_id: of the launch.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._is_closed = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return at once. Nothing listens on the returned port; it is for code that opens its own store."""
        bootstrap = RendezvousStoreInfo(LOOPBACK, free_port())
        return RendezvousInfo(HashStore(), 0, 1, bootstrap)

    @property
    def use_agent_store(self) -> bool:
        return False

    def get_backend(self) -> str:
        return BACKEND

    def is_closed(self) -> bool:
        return self._is_closed

    def set_closed(self) -> None:
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._is_closed = True
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return SingleNodeRendezvous(parameters.run_id)


_registered = False


def register_single_node() -> str:
    """Register this rendezvous with torch, and return its name there."""
    global _registered
    if not _registered:
        rendezvous_handler_registry.register(BACKEND, _create)
        _registered = True
    return BACKEND
