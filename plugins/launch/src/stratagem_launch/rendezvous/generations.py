"""`GenerationRendezvous`: a rendezvous at which the nodes of each round also agree on its number and its store.

The agent counts the restarts of its own node. A node that joins later has counted none, and a change
of members counts nowhere; but the ranks of a round must look for each other under one name, and on a
store that serves no round before it. So each round gets a number that no round before it had on any
of its nodes, and a fresh store on its first node, wherever that was in the round before.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from hashlib import sha256
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported, but not in __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from stratagem.sdk.processes import serve_store
from stratagem_launch.launch_dir import ROUND, LaunchDir
from stratagem_launch.rendezvous.dynamic import create_checked
from stratagem_launch.rendezvous.joining import note_nodes

BACKEND = "stratagem"
"""Its name among torch's rendezvous backends."""
_INNER, _EXCHANGE = "stratagem_backend", "stratagem_exchange"


def within_rounds(settings: dict[str, Any], launch_dir: str) -> dict[str, Any]:
    """Return fields of `LaunchConfig` whose rendezvous is wrapped in `GenerationRendezvous`.

    Args:
        settings: such fields.
        launch_dir: path of the launch's launch_dir.
    """
    _register()
    configs = {**settings["rdzv_configs"], _INNER: settings["rdzv_backend"], _EXCHANGE: launch_dir}
    return {**settings, "rdzv_backend": BACKEND, "rdzv_configs": configs}


class GenerationRendezvous(RendezvousHandler):
    """Wraps another rendezvous.

    Args:
        inner: the rendezvous of the nodes.
        launch_dir: of this node's launch.
        address: under which the other nodes reach this one.
        run_id: of the run, which may be a secret; `inner` has another.
    """

    def __init__(self, inner: RendezvousHandler, launch_dir: LaunchDir, address: str, run_id: str) -> None:
        self._inner, self._launch_dir, self._address, self._run_id = inner, launch_dir, address, run_id
        self._next_round = 0
        self._served: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the nodes of the next round."""
        with _NO_SHARED_STORE:
            info = self._inner.next_rendezvous()
        info.store.set(f"stratagem/next/{info.rank}", str(self._next_round))
        if info.rank == 0:
            wanted = [int(info.store.get(f"stratagem/next/{rank}")) for rank in range(info.world_size)]
            self._served = serve_store(self._address, 0)
            agreed: dict[str, Any] = {
                "round": max(wanted),
                "address": self._address,
                "port": self._served.port,
            }
            info.store.set("stratagem/round", json.dumps(agreed))
        else:
            agreed = json.loads(info.store.get("stratagem/round"))
            self._served = None
        self._next_round = agreed["round"] + 1
        self._launch_dir.put(ROUND, str(agreed["round"]).encode())
        place = RendezvousStoreInfo(agreed["address"], agreed["port"])
        return RendezvousInfo(info.store, info.rank, info.world_size, place)

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return BACKEND

    def is_closed(self) -> bool:
        return bool(self._inner.is_closed())

    def set_closed(self) -> None:
        self._inner.set_closed()  # type: ignore[no-untyped-call]  # torch has no types for it

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to take part. Where there are any, the agent ends its workers next."""
        count = int(self._inner.num_nodes_waiting())
        if count > 0:
            note_nodes(self._launch_dir, self._next_round - 1)
        return count

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return bool(self._inner.shutdown())


class _NoSharedStore:
    """Keeps torch from serving one store for all rounds, as a context that threads may enter at once.

    Its first node publishes the address only in its own first round, so that a node which joins in a later
    round waits for it in vain (seen in torch 2.13).
    """

    _NAME = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: str | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = os.environ.get(self._NAME)
            self._inside += 1
            os.environ[self._NAME] = "1"

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                del os.environ[self._NAME]
                if self._before is not None:
                    os.environ[self._NAME] = self._before


_NO_SHARED_STORE = _NoSharedStore()


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    settings = dict(parameters.config)
    backend, launch_dir = settings.pop(_INNER), settings.pop(_EXCHANGE)
    own = {"min_nodes": parameters.min_nodes, "max_nodes": parameters.max_nodes}
    asked = RendezvousParameters(
        backend,
        parameters.endpoint,
        # It is part of keys, which anyone who reaches a store can list.
        sha256(parameters.run_id.encode()).hexdigest(),
        **own,
        local_addr=parameters.local_addr,
        **settings,
    )
    inner = create_checked(asked) or rendezvous_handler_registry.create_handler(asked)
    address = parameters.local_addr or socket.getfqdn()
    return GenerationRendezvous(inner, LaunchDir(launch_dir), address, parameters.run_id)


_registered = False


def _register() -> None:
    global _registered
    if not _registered:
        rendezvous_handler_registry.register(BACKEND, _create)
        _registered = True
