"""`ReplicatedPrepared`: replicas whose buffers are those of rank 0 wherever they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem import Prepared, SetupRequest
from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.rank_buffers import RankBuffers

__all__ = ["ReplicatedPrepared"]


class ReplicatedPrepared(Prepared):
    """A whole module on every rank of the default process group, whose forwards change buffers rank by rank.

    Such buffers are the statistics of a BatchNorm, which each rank computes from its own batches. Training,
    evaluations, checkpoints and what a run leaves have rank 0's, as under DistributedDataParallel. Buffers that rank
    0's can't stand for are refused: `RankBuffers`.
    """

    def __init__(
        self,
        request: SetupRequest,
        module: nn.Module | None = None,
        optimizers: Sequence[Optimizer] | None = None,
    ) -> None:
        super().__init__(request, module, optimizers)
        self._rank_buffers = RankBuffers(request.original_module, request.collectives, has_option=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():  # evaluations run unequally many
            self._rank_buffers.before_forward()
            self.make_buffers_equal()
        return super().forward(*args, **kwargs)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._rank_buffers.compare()
        self.make_buffers_equal()
        with super().evaluating():
            yield

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._rank_buffers.compare()
        self.make_buffers_equal()
        return super().model_tensors()

    def restore_module(self) -> None:
        super().restore_module()
        self.make_buffers_equal()

    def make_buffers_equal(self) -> None:
        """Give all ranks the buffers of rank 0. Collective."""
        broadcast_coalesced(self.original_module.buffers())
