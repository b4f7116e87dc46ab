"""`ReplicatedPrepared`: replicas whose buffers are those of rank 0 wherever they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stratagem import Prepared
from stratagem_sharding.buckets import broadcast_coalesced

__all__ = ["ReplicatedPrepared"]


class ReplicatedPrepared(Prepared):
    """A whole module on every rank of the default process group, whose forwards change buffers rank by rank.

    As the statistics of a BatchNorm, which are of a rank's own batches. Training, evaluations, checkpoints
    and what a run leaves have rank 0's, as under DistributedDataParallel.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():  # evaluations run unequally many
            self.make_buffers_equal()
        return super().forward(*args, **kwargs)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.make_buffers_equal()
        with super().evaluating():
            yield

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self.make_buffers_equal()
        return super().model_tensors()

    def restore_module(self) -> None:
        super().restore_module()
        self.make_buffers_equal()

    def make_buffers_equal(self) -> None:
        """Give all ranks the buffers of rank 0. Collective."""
        broadcast_coalesced(self.original_module.buffers())
