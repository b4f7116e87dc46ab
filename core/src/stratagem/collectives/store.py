"""The store through which the ranks of a run find each other."""

from __future__ import annotations

import socket
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

# torch exports these without saying so in an __all__.
from torch.distributed import (  # type: ignore[attr-defined]  # exported, but not in __all__
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from stratagem.collectives.stores import serve_store
from stratagem.errors import CollectiveError

if TYPE_CHECKING:
    from stratagem.environments.base import Environment

_OPENED: Counter[tuple[str, int]] = Counter()
"""Store and attempt → number of groups that this process has opened there. It is the same on every rank."""


def open_store(environment: Environment, timeout: timedelta) -> Store:
    """Open the store of a new group, and wait until every rank has announced itself in it. Collective.

    Args:
        environment: this process's rank, and the address of the store.
        timeout: how long to wait.

    Raises:
        CollectiveError: not all ranks came within `timeout`; names those that are missing.
    """
    rank, world_size = environment.global_rank, environment.world_size
    if world_size == 1:
        return HashStore()
    where = environment.store_file or f"{environment.main_address}:{environment.main_port}"
    opened = FileStore(where) if environment.store_file else _tcp_store(environment, timeout)
    opened.set_timeout(timeout)
    # The store may outlive a group: after a restart, or in a program that trains and then tests. Prefixes keep the
    # next group from reading the addresses of the previous one.
    place = (where, environment.attempt)
    store = PrefixStore(f"attempt{environment.attempt}/group{_OPENED[place]}", opened)
    _OPENED[place] += 1
    store.set(f"here/{rank}", socket.gethostname())
    expected = [f"here/{other}" for other in range(world_size)]
    try:
        store.wait(expected, timeout)
    except RuntimeError as error:
        missing = [other for other, key in enumerate(expected) if not store.check([key])]
        raise CollectiveError(
            f"rank {rank} of {world_size} waited {timeout.total_seconds():.0f} s, and rank "
            f"{', '.join(map(str, missing))} never came"
        ) from error
    return store


def _tcp_store(environment: Environment, timeout: timedelta) -> TCPStore:
    """Connect to the run's store. Rank 0 serves it, unless the launcher does."""
    rank, world_size = environment.global_rank, environment.world_size
    address, port = environment.main_address, environment.main_port
    is_server = rank == 0 and not environment.store_is_served
    try:
        if is_server:
            return serve_store(address, port, timeout)
        return TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)
    except (RuntimeError, ConnectionError) as error:
        raise CollectiveError(
            f"rank {rank} of {world_size} can't reach the store of rank 0 at {address}:{port}: {error}"
        ) from error
