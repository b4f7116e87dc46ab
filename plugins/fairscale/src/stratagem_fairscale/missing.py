"""`MissingGradients`: finds the gradients that no rank has. Only ranks that lack gradients communicate."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import TYPE_CHECKING, Any

from stratagem.sdk.torch_private import store_of

if TYPE_CHECKING:
    from stratagem import Collectives

_INSTANCES = count()
"""Counts the instances in this process; the count may differ between processes."""
_KEPT = 16
"""Windows that the store keeps. No rank gets this many windows ahead of another, since each waits for all."""


class MissingGradients:
    """Exchanges which gradients each rank lacks, through the process group's store. Construction is collective.

    No rank waits for the store: each writes to it before it sends zeros, and a finished sum includes all ranks.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._store: Any = store_of()
        self._ranks = range(collectives.world_size)
        self._rank = collectives.rank
        self._prefix = f"fairscale{collectives.broadcast(next(_INSTANCES))}"

    def publish(self, window: int, lacking: Collection[int]) -> None:
        """Publish the numbers of the gradients that this rank lacks in this window."""
        self._store.set(self._key(window, self._rank), " ".join(map(str, (window, *lacking))))

    def nowhere(self, window: int, lacking: Collection[int]) -> set[int]:
        """Return which of the gradients in `lacking` no other rank has either. Call it after their reduction."""
        missing = set(lacking)
        for rank in self._ranks:
            if not missing:
                break
            if rank != self._rank:
                missing &= self._lacking_on(window, rank)
        return missing

    def _lacking_on(self, window: int, rank: int) -> set[int]:
        key = self._key(window, rank)
        if not self._store.check([key]):
            return set()
        written_in, *lacking = map(int, self._store.get(key).split())
        return set(lacking) if written_in == window else set()

    def _key(self, window: int, rank: int) -> str:
        return f"{self._prefix}/{rank}/{window % _KEPT}"
