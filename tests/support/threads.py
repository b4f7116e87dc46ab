"""Ranks as threads of one process: real exchange between ranks, without starting processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from stratagem.collectives.base import Collectives, ReduceOp


class ThreadCollectives(Collectives):
    """Collectives among the threads that share `board`."""

    def __init__(self, rank: int, world_size: int, board: list[Any], meeting: threading.Barrier) -> None:
        self.rank = self.local_rank = rank
        self.node_rank = 0
        self.world_size = world_size
        self.device = torch.device("cpu")
        self.calls = 0
        """How many exchanges there were."""
        self._board, self._meeting = board, meeting

    def gather_objects(self, value: Any) -> list[Any]:
        self.calls += 1
        self._board[self.rank] = value
        self._meeting.wait(timeout=120)
        gathered = list(self._board)
        self._meeting.wait(timeout=120)
        return gathered

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        return torch.stack(self.gather_objects(tensor.detach().clone()))

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        gathered = self.all_gather(tensor)
        if op == "mean":
            return (gathered.sum(0) / self.world_size).to(tensor.dtype)
        by_name = {"sum": gathered.sum(0), "product": gathered.prod(0)}
        return by_name[op] if op in by_name else getattr(gathered, f"a{op}")(0)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return self.gather_objects(value)[src]

    def barrier(self, name: str | None = None) -> None:
        self.gather_objects(name)


def on_threads(world_size: int, work: Callable[[Collectives], Any]) -> list[Any]:
    """Run `work(collectives)` on each rank; return the results in the order of ranks.

    The first error of a rank ends the others' waiting and is raised.
    """
    board: list[Any] = [None] * world_size
    meeting = threading.Barrier(world_size)
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadCollectives(rank, world_size, board, meeting))
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            meeting.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
