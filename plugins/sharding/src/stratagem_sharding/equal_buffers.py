"""`EqualBuffers`: broadcast rank 0's buffers after forwards have changed them on each rank."""

from __future__ import annotations

from torch import nn

from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.rank_buffers import RankBuffers

__all__ = ["EqualBuffers"]


class EqualBuffers:
    """Broadcasts rank 0's buffers before they are read, if a forward has changed them since the last broadcast.

    Args:
        module: the module that has the buffers. Sharded buffers are left alone.
        world_size: number of ranks; with one rank nothing is sent.
        differ: whether buffers may differ between ranks from the start.
        rank_buffers: refuses buffers that can't be replaced by rank 0's; None refuses nothing.
    """

    def __init__(
        self, module: nn.Module, world_size: int, *, differ: bool, rank_buffers: RankBuffers | None = None
    ) -> None:
        self._module, self._rank_buffers, self._forwards = module, rank_buffers, 0
        is_local = rank_buffers is not None and rank_buffers.are_local
        self._has_any = world_size > 1 and not is_local and any(True for _ in module.buffers())
        self._differ = differ and self._has_any

    def note_forward(self, training: bool) -> None:
        """Note a forward. In training mode it changes buffers according to this rank's batch."""
        self._differ = training and self._has_any
        self._forwards += training

    def make_equal(self, *, compare: bool = False) -> None:
        """Broadcast rank 0's buffers if a forward has changed them. Collective.

        Args:
            compare: compare the ranks' buffers first. If False, they are compared after the first forwards, and then
                more and more rarely.

        Raises:
            DataError: a buffer that `rank_buffers` compares differs between ranks.
        """
        if self._differ:
            from torch.distributed.tensor import DTensor

            if self._rank_buffers is not None and self._forwards:
                if compare:
                    self._rank_buffers.compare()
                else:
                    self._rank_buffers.compare_after(self._forwards)
            self._differ = False
            broadcast_coalesced(each for each in self._module.buffers() if not isinstance(each, DTensor))
