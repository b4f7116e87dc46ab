"""`MissingGradients`: which gradients no rank has, found out only where this rank lacks some."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import TYPE_CHECKING, Any

from stratagem.sdk.torch_private import store_of

if TYPE_CHECKING:
    from stratagem import Collectives

_INSTANCES = count()
"""Objects that this process has made; other processes may have made others."""
_KEPT = 16
"""Windows of which the store keeps what ranks lack: no rank gets so far ahead of one that it waits for."""


class MissingGradients:
    """What each rank lacks in a reduction, exchanged through the process group's store. Collective to make.

    No rank waits for it: a rank writes to the store before it sends zeros, and a finished sum has all ranks' parts.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._store: Any = store_of()
        self._ranks = range(collectives.world_size)
        self._rank = collectives.rank
        self._prefix = f"fairscale{collectives.broadcast(next(_INSTANCES))}"

    def tell(self, window: int, lacking: Collection[int]) -> None:
        """Tell the others that in this window this rank lacks the gradients with these numbers."""
        self._store.set(self._key(window, self._rank), " ".join(map(str, (window, *lacking))))

    def nowhere(self, window: int, lacking: Collection[int]) -> set[int]:
        """Return which of those that this rank lacks no other rank has, once all their parts have come."""
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
