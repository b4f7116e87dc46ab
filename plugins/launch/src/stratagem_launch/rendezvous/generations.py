"""`GenerationRendezvous`: a rendezvous in which the nodes of each round also agree on its number and its store.

Each agent counts only the restarts of its own node. A node that joins later has counted none, and no agent counts a
change of members (pytorch/pytorch#135712). But all ranks of a round must use the same key prefix, and a store that no
earlier round has used. So each round gets a number that is new on all of its nodes, and a new store on its first
node.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # exported, but not in __all__
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
from stratagem_launch.rendezvous.joining import RunEndedError, note_nodes

BACKEND = "stratagem"
"""Name of this backend in torch's registry of rendezvous backends."""
_INNER, _EXCHANGE, _UNIT = "stratagem_backend", "stratagem_exchange", "stratagem_node_unit"
_ENDED = "stratagem/spares-ended"
_POLL_S = 0.5
_SPARES_S = 5.0
"""How long a node whose run has ended waits for spare nodes. The store that they read may end with this node."""


def with_generations(settings: dict[str, Any], launch_dir: str, node_unit: int = 1) -> dict[str, Any]:
    """Return fields of `LaunchConfig` whose rendezvous is wrapped in `GenerationRendezvous`.

    Args:
        settings: fields of `LaunchConfig`.
        launch_dir: path of the launch's `LaunchDir`.
        node_unit: the number of nodes in a round is a multiple of this.
    """
    _register()
    own = {_INNER: settings["rdzv_backend"], _EXCHANGE: launch_dir, _UNIT: node_unit}
    configs = {**settings["rdzv_configs"], **own}
    return {**settings, "rdzv_backend": BACKEND, "rdzv_configs": configs}


class GenerationRendezvous(RendezvousHandler):
    """Wraps another rendezvous.

    Args:
        inner: the wrapped rendezvous.
        launch_dir: of this node's launch.
        address: address at which the other nodes reach this one.
        run_id: the run's ID, which may be a secret; `inner` has another one.
        node_unit: the number of nodes in a round is a multiple of this. The remaining nodes are spare, and wait.
    """

    def __init__(
        self,
        inner: RendezvousHandler,
        launch_dir: LaunchDir,
        address: str,
        run_id: str,
        node_unit: int = 1,
    ) -> None:
        self._inner, self._launch_dir, self._address, self._run_id = inner, launch_dir, address, run_id
        self._unit = node_unit
        self._spares = 0
        self._former_rank: int | None = None
        """This node's rank in the previous round; None if it took no part."""
        self._store: Store | None = None
        self._next_round = 0
        self._served: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the nodes of the next round in which this node takes part.

        Raises:
            RunEndedError: the run ended before such a round.
        """
        while True:
            with _NO_SHARED_STORE:
                info = self._inner.next_rendezvous()
            self._store, self._spares = info.store, info.world_size % self._unit
            nodes = info.world_size - self._spares
            rank = self._order(info).index(info.rank)
            number, place = self._agree(info, rank)
            self._former_rank = rank if rank < nodes else None
            if rank < nodes:
                self._launch_dir.put(ROUND, str(number).encode())
                return RendezvousInfo(info.store, rank, nodes, place)
            _say_spare(info.world_size, nodes)
            self._wait_as_spare(info.store)

    def _order(self, info: RendezvousInfo) -> list[int]:
        """Return, for each node rank in this round, its rank in the inner rendezvous; whole former units first."""
        if self._unit == 1:
            return list(range(info.world_size))
        info.store.set(f"stratagem/former/{info.rank}", json.dumps(self._former_rank))
        former = [json.loads(info.store.get(f"stratagem/former/{rank}")) for rank in range(info.world_size)]
        return whole_units_first(former, self._unit)

    def _agree(self, info: RendezvousInfo, rank: int) -> tuple[int, RendezvousStoreInfo]:
        """Return the number of this round and the address of its store. Spare nodes take part in the agreement."""
        info.store.set(f"stratagem/next/{rank}", str(self._next_round))
        if rank == 0:
            wanted = [int(info.store.get(f"stratagem/next/{each}")) for each in range(info.world_size)]
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
        return agreed["round"], RendezvousStoreInfo(agreed["address"], agreed["port"])

    def _wait_as_spare(self, store: Store) -> None:
        """Return once nodes wait to join: new ones, or nodes whose workers have failed."""
        while self._inner.num_nodes_waiting() == 0:
            if self._inner.is_closed():
                store.add(_ENDED, 1)
                raise RunEndedError("the run has ended without this node")
            time.sleep(_POLL_S)

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
        """Return how many nodes wait to join. If there are any, the agent ends its workers next."""
        count = int(self._inner.num_nodes_waiting())
        if count > 0:
            note_nodes(self._launch_dir, self._next_round - 1)
        return count

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        is_closed = bool(self._inner.shutdown())
        deadline = time.monotonic() + _SPARES_S
        with contextlib.suppress(RuntimeError):  # the store has ended before
            while self._spares and self._store is not None and time.monotonic() < deadline:
                if self._store.add(_ENDED, 0) >= self._spares:
                    break
                time.sleep(0.1)
        return is_closed


def whole_units_first(former: Sequence[int | None], unit: int) -> list[int]:
    """Return the order of a round's nodes. Complete units of the previous round come first; other nodes may be spare.

    Args:
        former: each node's rank in the previous round; None if it took no part.
        unit: number of nodes in a unit.

    Returns:
        Indices of `former`.
    """
    units = Counter(rank // unit for rank in former if rank is not None)
    place = {
        index: rank for index, rank in enumerate(former) if rank is not None and units[rank // unit] == unit
    }
    return sorted(range(len(former)), key=lambda index: (index not in place, place.get(index, index)))


def _say_spare(nodes: int, used: int) -> None:
    print(
        f"  spare on {socket.gethostname()}: {nodes} machines are here, and {used} take part; this one waits until "
        "another joins or is lost",
        file=sys.stderr,
        flush=True,
    )


class _NoSharedStore:
    """Keeps torch from sharing one store between all rounds. A context manager that threads may enter at once.

    Torch's first node publishes the shared store's address only in its own first round. A node that joins in a later
    round would wait for it for ever (seen in torch 2.13).
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
    backend, launch_dir, unit = settings.pop(_INNER), settings.pop(_EXCHANGE), settings.pop(_UNIT)
    own = {"min_nodes": parameters.min_nodes, "max_nodes": parameters.max_nodes}
    asked = RendezvousParameters(
        backend,
        parameters.endpoint,
        # Hash the run ID: it becomes part of keys, which anyone who reaches the store can list.
        sha256(parameters.run_id.encode()).hexdigest(),
        **own,
        local_addr=parameters.local_addr,
        **settings,
    )
    inner = create_checked(asked) or rendezvous_handler_registry.create_handler(asked)
    address = parameters.local_addr or socket.getfqdn()
    return GenerationRendezvous(inner, LaunchDir(launch_dir), address, parameters.run_id, unit)


_registered = False


def _register() -> None:
    global _registered
    if not _registered:
        rendezvous_handler_registry.register(BACKEND, _create)
        _registered = True
