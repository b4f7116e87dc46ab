"""Finds out whether all ranks reach a point, through a `torch.distributed.Store` instead of a collective."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # exported, but not in __all__

_YES, _NO = "yes", "no"


def all_arrive(store: Store, name: str, rank: int, world_size: int, timeout_s: float) -> bool:
    """Wait until `world_size` ranks have called this with `name` as often as this one. Return whether they did.

    All ranks that call it get the same answer, even a rank that comes late.

    Args:
        store: shared by these ranks and by no others.
        name: of the point.
        rank: this process's index among the ranks.
        world_size: number of ranks.
        timeout_s: how many seconds to wait; may be 0. A file store waits up to a second longer.
    """
    point = f"arrive/{name}"
    try:
        # Counted in the store: several objects of one process may ask about the same group.
        call = store.add(f"{point}/calls/{rank}", 1)
        arrived, answer = f"{point}/{call}/arrived", f"{point}/{call}/answer"
        if store.add(arrived, 1) == world_size:
            settled = _settle(store, answer, _YES)
            if call > 1:  # every rank has read the previous call's answer
                for key in (f"{point}/{call - 1}/arrived", f"{point}/{call - 1}/answer"):
                    store.delete_key(key)
            return settled
        try:
            # With 0 ms, a file store would wait forever.
            store.wait([answer], max(timedelta(seconds=timeout_s), timedelta(milliseconds=1)))
        except RuntimeError:  # the time is over
            return _settle(store, answer, _NO)
        return bool(store.get(answer) == _YES.encode())
    except RuntimeError:  # the store is gone, with the process that served it
        return False


def _settle(store: Store, key: str, answer: str) -> bool:
    """Set the answer unless another rank has set it: the first rank decides for all. Return whether it is yes."""
    return bool(store.compare_set(key, "", answer) == _YES.encode())
