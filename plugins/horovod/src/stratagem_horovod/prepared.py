"""What the loop calls per step under horovod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from stratagem_sharding.buckets import flattened_buckets
from stratagem_sharding.replicated import ReplicatedPrepared
from stratagem_sharding.synchronised import SynchronisedPrepared
from torch.optim import Optimizer

from stratagem import SetupRequest
from stratagem_horovod.engine import Engine
from stratagem_horovod.reducer import GradientReducer
from stratagem_horovod.scaling import ScaledLearningRates


class HorovodPrepared(SynchronisedPrepared, ReplicatedPrepared):
    """A replica whose gradients Horovod averages, during each backward that is to be synchronised.

    Backwards that it doesn't run itself, as `loss.backward()`, end with an average by the process group.

    Args:
        request: as everywhere. Collective.
        engine: running.
        fp16: send gradients as float16.
        scale_lr: step with learning rates times the number of ranks.
    """

    averages_raw_backwards = True

    def __init__(self, request: SetupRequest, engine: Engine, fp16: bool, scale_lr: bool) -> None:
        super().__init__(request)
        self._engine = engine
        self.take_from(0)
        self.compares_replicas = bool(request.config.check_replicas_every)
        self._reducer = GradientReducer(engine, dict(self.original_module.named_parameters()), fp16)
        self._scaled = ScaledLearningRates(self.optimizers, engine.hvd.size() if scale_lr else 1)
        self.track(request)

    def take_from(self, rank: int) -> None:
        """Give every rank the parameters, buffers and optimizer states of one. Collective."""
        broadcast(self._engine, (*self.original_module.parameters(), *self.original_module.buffers()), rank)
        with self._engine.waiting("sent optimizer states"):
            broadcast_states(self._engine, self.optimizers, rank)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self._reducer.is_on = self.is_syncing
        try:
            super().backward(loss, **kwargs)
        finally:
            self._reducer.is_on = False

    def reduce(self) -> None:
        self._reducer.finish()
        self.note_reduced(self.synchronised())

    def release(self) -> None:
        super().release()
        self._reducer.release()
        self._scaled.release()


def broadcast(engine: Engine, tensors: Iterable[torch.Tensor], rank: int = 0) -> None:
    """Give every rank the values of one, in place, as `hvd.broadcast_parameters`, and of any dtype. Collective."""
    if engine.hvd.size() == 1:
        return
    with engine.waiting("sent parameters"):
        for flat in flattened_buckets(each for each in tensors if each.numel()):
            real = torch.view_as_real(flat) if flat.is_complex() else flat
            engine.hvd.broadcast_(real.view(torch.uint8), rank, name=f"broadcast {engine.number()}")


def broadcast_states(engine: Engine, optimizers: Iterable[Optimizer], rank: int = 0) -> None:
    """Give every rank one's states and settings of the optimizers that have a state there. Collective.

    `hvd.broadcast_optimizer_state` makes a step in order to have states, which changes parameters, and refuses LBFGS.
    """
    if engine.hvd.size() == 1:
        return
    is_source = engine.hvd.rank() == rank
    for optimizer in optimizers:
        own = optimizer.state_dict() if is_source and optimizer.state else None
        state = engine.hvd.broadcast_object(own, rank, name=f"optimizer {engine.number()}")
        if state is not None and not is_source:
            optimizer.load_state_dict(state)
