"""Names that forward to a live run's collectives, for `Runtime` and for strategies during a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives


class RankFacade:
    """Forwards to `self.collectives`."""

    if TYPE_CHECKING:

        @property
        def collectives(self) -> Collectives: ...

    @property
    def global_rank(self) -> int:
        """Index of this process among all, from 0."""
        return self.collectives.rank

    @property
    def local_rank(self) -> int:
        """Index of this process among those of its node, from 0."""
        return self.collectives.local_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.collectives.world_size

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """See `Collectives.broadcast`: a tensor, or any picklable object."""
        return self.collectives.broadcast(value, src)

    def barrier(self, name: str | None = None) -> None:
        """See `Collectives.barrier`."""
        self.collectives.barrier(name)
