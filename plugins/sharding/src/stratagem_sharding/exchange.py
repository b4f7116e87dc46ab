"""`StoreExchange`: short messages between ranks through the process group's store, outside of collectives."""

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
"""Counts the exchanges of this process; other processes may have created a different number."""


class StoreExchange:
    """Short messages between ranks. Unlike a collective, it doesn't wait for ever if a rank never sends its message.

    Creating one is collective.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._store: Any = store_of()
        self._prefix = f"ddp{collectives.broadcast(next(_INSTANCES))}"

    def compare(self, name: str, value: str, timeout_s: float) -> list[str | None]:
        """Return every rank's value, in rank order; None for a rank that sends none within `timeout_s`."""
        keys = [f"{self._prefix}/{name}/{rank}" for rank in range(dist.get_world_size())]
        self._store.set(keys[dist.get_rank()], value)
        try:
            self._store.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError:  # torch's DistStoreError is one
            return [self._store.get(key).decode() if self._store.check([key]) else None for key in keys]
        return [value.decode() for value in self._store.multi_get(keys)]

    def announce(self, name: str) -> None:
        """Add this rank to the count of a name. Doesn't wait for other ranks."""
        self._store.add(f"{self._prefix}/{name}", 1)

    def announced(self, name: str) -> int:
        """How many ranks have announced this name so far."""
        return int(self._store.add(f"{self._prefix}/{name}", 0))
