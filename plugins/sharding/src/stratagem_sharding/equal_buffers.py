"""`EqualBuffers`: rank 0's buffers on every rank, where each rank's forwards change its own."""

from __future__ import annotations

from torch import nn

from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.rank_buffers import RankBuffers

__all__ = ["EqualBuffers"]


class EqualBuffers:
    """Sends rank 0's buffers where a forward has changed them, and someone is about to read them.

    Args:
        module: whose; what is sharded of them is no other rank's, and left alone.
        world_size: number of ranks; one has nothing to send.
        differ: whether ranks may have different ones from the start.
        rank_buffers: refuses buffers that rank 0's can't stand for; None where nothing is refused.
    """

    def __init__(
        self, module: nn.Module, world_size: int, *, differ: bool, rank_buffers: RankBuffers | None = None
    ) -> None:
        self._module, self._rank_buffers, self._forwards = module, rank_buffers, 0
        is_local = rank_buffers is not None and rank_buffers.are_local
        self._has_any = world_size > 1 and not is_local and any(True for _ in module.buffers())
        self._differ = differ and self._has_any

    def note_forward(self, training: bool) -> None:
        """Note a forward: in training mode it changes buffers by what the rank's batch has."""
        self._differ = training and self._has_any
        self._forwards += training

    def make_equal(self, *, compare: bool = False) -> None:
        """Give every rank rank 0's, where a forward has changed them. Collective.

        Args:
            compare: compare them before in any case; otherwise after the first forwards, and ever more rarely.

        Raises:
            DataError: ranks computed different values from their different samples.
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
