"""`ReplicatedPrepared`: replicas whose buffers are rank 0's whenever they are read."""

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
    """A whole module on every rank of the default process group, with forwards that change each rank's buffers.

    An example is BatchNorm's statistics, which each rank computes from its own batches. Training, evaluations,
    checkpoints and the final module use rank 0's buffers, as under DistributedDataParallel. `RankBuffers` refuses
    buffers that rank 0's can't replace.
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
        if torch.is_grad_enabled():  # ranks may run different numbers of evaluation forwards
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
