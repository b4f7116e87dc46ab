"""What a rank sees of itself and of the others."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from stratagem.collectives.base import Collectives, ReduceOp
    from stratagem.runtime.session import Session


class RankView:
    """This rank's place and its collectives, read off a live session."""

    @property
    @abstractmethod
    def session(self) -> Session:
        """The live objects of the run."""

    # Who am I -------------------------------------------------------------------------------------

    @property
    def collectives(self) -> Collectives:
        """How the ranks talk."""
        return self.session.collectives

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.session.device

    @property
    def rank(self) -> int:
        """This process among all, from 0."""
        return self.session.collectives.rank

    @property
    def local_rank(self) -> int:
        """This process among those of its node, from 0."""
        return self.session.collectives.local_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.session.collectives.world_size

    @property
    def data_rank(self) -> int:
        """Which part of the data this process reads, from 0; ranks that share a copy of the model read one."""
        return self.session.collectives.data.rank

    @property
    def data_ranks(self) -> int:
        """In how many parts the data are shared."""
        return self.session.collectives.data.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    # Collectives ------------------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        """See `Collectives.all_reduce`."""
        return self.collectives.all_reduce(tensor, op)

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        """See `Collectives.all_gather`."""
        return self.collectives.all_gather(tensor, sync_grads)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """See `Collectives.broadcast`."""
        return self.collectives.broadcast(value, src)

    def barrier(self, name: str | None = None) -> None:
        """See `Collectives.barrier`."""
        self.collectives.barrier(name)

    def print(self, *values: object) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            print(*values, flush=True)
