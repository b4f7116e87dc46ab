"""`EqualBuffers`: rank 0's buffers on every rank, where each rank's forwards change its own."""

from __future__ import annotations

from torch import nn

from stratagem_sharding.buckets import broadcast_coalesced

__all__ = ["EqualBuffers"]


class EqualBuffers:
    """Sends rank 0's buffers where a forward has changed them, and somebody is about to read them.

    Args:
        module: whose; what is sharded of them is no other rank's, and left alone.
        world_size: number of ranks; one has nothing to send.
        differ: whether ranks may have different ones from the start.
    """

    def __init__(self, module: nn.Module, world_size: int, *, differ: bool) -> None:
        self._module = module
        self._has_any = world_size > 1 and any(True for _ in module.buffers())
        self._differ = differ and self._has_any

    def note_forward(self, training: bool) -> None:
        """Note a forward: in training mode it changes buffers by what the rank's batch has."""
        self._differ = training and self._has_any

    def make_equal(self) -> None:
        """Give every rank rank 0's, where a forward has changed them. Collective."""
        if self._differ:
            from torch.distributed.tensor import DTensor

            self._differ = False
            broadcast_coalesced(each for each in self._module.buffers() if not isinstance(each, DTensor))
