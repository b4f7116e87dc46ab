"""What the loop calls per step under fsdp."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets, gradients_of_any
from stratagem_sharding.equal_buffers import EqualBuffers

from stratagem import SetupRequest
from stratagem_fsdp.unit_prepared import UnitPrepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratagem_sharding.rank_buffers import RankBuffers

    from stratagem_fsdp.sharding import Sharded


class FSDPPrepared(UnitPrepared):
    """A sharded module. Every forward is collective, also in an evaluation.

    Args:
        request: as the `setup` hook received it; its module has been sharded.
        sharded: its sharded units.
        rank_buffers: the buffers that each rank keeps for itself.
    """

    strategy_name = "fsdp"
    advice = (
        "use them within the block's forward, or set auto_wrap_policy=[] (--set strategy.auto_wrap_policy=[]), by "
        "which all parameters stay gathered throughout a step, or choose ddp"
    )

    def __init__(self, request: SetupRequest, sharded: Sharded, rank_buffers: RankBuffers) -> None:
        roots = sharded.roots
        by_hand = request.loop.manual and request.loop.training
        super().__init__(
            request,
            request.module,
            sharded,
            freed=[unit for unit in sharded.units if by_hand or unit not in roots],
            step_root=roots[0] if roots and not by_hand else None,
            rank_buffers=rank_buffers,
        )
        self._by_hand = by_hand
        self._equal_buffers = EqualBuffers(
            self.module, self._world_size, differ=False, rank_buffers=rank_buffers
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.gradients.recover()
        self._equal_buffers.make_equal()
        with self.explaining(), self.recovering():
            output = super().forward(*args, **kwargs)
        self.order.end_forward(output is None and not self._by_hand and torch.is_grad_enabled())
        self._equal_buffers.note_forward(self.original_module.training)
        if not torch.is_grad_enabled():
            self.reshard()  # no backward follows that would reshard
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if self._by_hand:
            self.order.begin_backward()
        super().backward(loss, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.reshard()

    @contextmanager
    def _accumulating(self) -> Iterator[None]:
        self.set_reduces(False)
        try:
            yield
        finally:
            self.set_reduces(True)

    def no_sync(self) -> AbstractContextManager[Any]:
        # Post-accumulate hooks run after a reduction and must run once per backward, so each backward reduces.
        return nullcontext() if self.mirror.has_accumulated_hooks else self._accumulating()

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self.reshard()
        self._equal_buffers.make_equal(compare=True)
        return super().model_tensors()

    def restore_module(self) -> None:
        super().restore_module()
        self._equal_buffers.make_equal()

    def _average_whole(self) -> None:
        """Average gradients of unsharded parameters. Collective.

        Averaging equal values doesn't change them, so gradients may accumulate over several calls.
        """
        trained = [each for each in self.sharded.whole if each.requires_grad and each.numel()]
        has_one = [parameter.grad is not None for parameter in trained]
        for flat in flattened_buckets(gradients_of_any(trained, has_one, self.device)):
            dist.all_reduce(flat)
            flat.div_(self._world_size)
