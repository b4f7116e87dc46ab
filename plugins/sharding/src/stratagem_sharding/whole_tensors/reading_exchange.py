"""`ReadingExchange`: checks that all ranks read a sharded tensor, before they start a collective for it."""

from __future__ import annotations

import linecache
import os
import sys
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from stratagem.errors import ShardedUseError
from stratagem.sdk.torch_private import store_of

if TYPE_CHECKING:
    from stratagem import Collectives

__all__ = ["ReadingExchange"]

TIMEOUT_S = 30.0
"""How long a rank waits for the others to read the same tensor."""

_INSTANCES = count()
"""Counts the exchanges of this process; other processes may have created a different number."""


class ReadingExchange:
    """Compares the source lines at which ranks read sharded tensors, through the process group's store.

    If one rank alone reads a tensor, as in `if rank == 0: print(weight.norm())`, its collective would wait until the
    process group's timeout. The store lets it fail within seconds, with a message that names the line. Creating one
    is collective.
    """

    current: ReadingExchange | None = None
    """The exchange that was created last, as tensors have no reference to their run."""

    def __init__(self, collectives: Collectives) -> None:
        self._store: Any = store_of()
        self._prefix = f"whole{collectives.broadcast(next(_INSTANCES))}"
        self._counts: dict[str, int] = {}
        ReadingExchange.current = self

    def agree(self, ranks: list[int], operation: str) -> None:
        """Return once all of `ranks` have reached the same operation in the same source line.

        Raises:
            ShardedUseError: a rank is at another line, or reaches none within `TIMEOUT_S`.
        """
        if not dist.is_initialized():
            raise ShardedUseError(
                f"{operation} needs the shards of all ranks, and the run has ended: read it within the run, or "
                "load the run's checkpoint"
            )
        group = f"{ranks[0]}-{ranks[-1]}-{len(ranks)}"
        number = self._counts[group] = self._counts.get(group, 0) + 1
        keys = [f"{self._prefix}/{group}/{number}/{rank}" for rank in ranks]
        rank = dist.get_rank()
        own = ranks.index(rank)
        here = f"{operation} at {_user_line()}"
        self._store.set(keys[own], here)
        try:
            self._store.wait(keys, timedelta(seconds=TIMEOUT_S))
        except RuntimeError as error:  # torch's DistStoreError is one
            missing = [other for other, key in zip(ranks, keys) if not self._store.check([key])]
            raise ShardedUseError(
                f"rank {rank} reads {here}, and {_ranks(missing)} did not within {TIMEOUT_S:.0f} s: each process has "
                "a shard of this tensor, so all ranks must read it; read it on all of them, and print it on one"
            ) from error
        others = [value.decode() for value in self._store.multi_get(keys)]
        if number > 2:  # all ranks have read what was written two exchanges ago
            self._store.delete_key(f"{self._prefix}/{group}/{number - 2}/{rank}")
        for other, there in zip(ranks, others):
            if there != here:
                raise ShardedUseError(
                    f"rank {rank} reads {here}, and rank {other} reads {there}: each process has a shard of these "
                    "tensors, so all ranks must read the same one; read it on all of them, and print it on one"
                )


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _user_line() -> str:
    """Return "file:line (text)" of the innermost frame outside torch and strategies."""
    # patch: line of a reading
    innermost: Any = sys._getframe(1)
    frame = innermost
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "stratagem", "contextlib", "copy") and not package.startswith(
            "stratagem_"
        ):
            break
        frame = frame.f_back
    frame = frame or innermost
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f"{os.path.basename(file)}:{line}" + (f" ({text})" if text else "")
