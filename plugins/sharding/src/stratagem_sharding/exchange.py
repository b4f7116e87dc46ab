"""`StoreExchange`: what ranks tell each other outside their collectives, through the store of the process group."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from stratagem.sdk.torch_private import store_of

if TYPE_CHECKING:
    from stratagem import Collectives

__all__ = ["StoreExchange"]

_INSTANCES = count()
"""Exchanges that this process has made; other processes may have made others."""


class StoreExchange:
    """Short messages between ranks of which some may never come, where a collective would wait for all.

    Collective to make.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._store: Any = store_of()
        self._prefix = f"ddp{collectives.broadcast(next(_INSTANCES))}"

    def compare(self, name: str, value: str, timeout_s: float) -> list[str | None]:
        """Return every rank's value, in the order of ranks; None for a rank that doesn't come in time."""
        keys = [f"{self._prefix}/{name}/{rank}" for rank in range(dist.get_world_size())]
        self._store.set(keys[dist.get_rank()], value)
        try:
            self._store.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError:  # torch's DistStoreError is one
            return [self._store.get(key).decode() if self._store.check([key]) else None for key in keys]
        return [value.decode() for value in self._store.multi_get(keys)]

    def announce(self, name: str) -> None:
        """Count this rank under a name; doesn't wait for other ranks."""
        self._store.add(f"{self._prefix}/{name}", 1)

    def announced(self, name: str) -> int:
        """How many ranks have announced this name so far."""
        return int(self._store.add(f"{self._prefix}/{name}", 0))
