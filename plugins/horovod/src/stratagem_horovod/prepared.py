"""What the loop calls per step under horovod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from stratagem_sharding.buckets import flattened_buckets
from stratagem_sharding.replicated import ReplicatedPrepared
from torch.optim import Optimizer

from stratagem import Clipping, Prepared, SetupRequest
from stratagem.sdk.loops import loss_of
from stratagem_horovod.engine import Engine
from stratagem_horovod.reducer import GradientReducer
from stratagem_horovod.scaling import ScaledLearningRates


class HorovodReplica(Prepared):
    """A replica that starts as rank 0's and isn't trained."""

    def __init__(self, request: SetupRequest, engine: Engine) -> None:
        super().__init__(request)
        broadcast(engine, (*self.original_module.parameters(), *self.original_module.buffers()))


class HorovodPrepared(ReplicatedPrepared):
    """A replica whose gradients Horovod averages, during each backward that is to be synchronised.

    Args:
        request: as everywhere. Collective.
        engine: running.
        fp16: send gradients as float16.
        scale_lr: step with learning rates times the number of ranks.
    """

    def __init__(self, request: SetupRequest, engine: Engine, fp16: bool, scale_lr: bool) -> None:
        super().__init__(request)
        self._engine = engine
        self.take_from(0)
        self.compares_replicas = bool(request.config.check_replicas_every)
        self._reducer = GradientReducer(engine, dict(self.original_module.named_parameters()), fp16)
        self._scaled = ScaledLearningRates(self.optimizers, engine.hvd.size() if scale_lr else 1)
        # Your own training loop may call the loss's backward itself.
        self._handles = [each.register_step_pre_hook(self._average_what_was_sent) for each in self.optimizers]

    def take_from(self, rank: int) -> None:
        """Give every rank the parameters, buffers and optimizer states of one. Collective."""
        broadcast(self._engine, (*self.original_module.parameters(), *self.original_module.buffers()), rank)
        with self._engine.waiting("sent optimizer states"):
            broadcast_states(self._engine, self.optimizers, rank)

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if sync and self._reducer.is_on and loss_of(output) is None:
            self._reducer.finish()  # other ranks may have a loss
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        if self._reducer.is_on:
            self._reducer.finish()

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        self._average_what_was_sent()
        return super().clip(index, clipping)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._reducer.is_on = self._reducer.is_on, False
        try:
            yield
        finally:
            self._reducer.is_on = before

    def release(self) -> None:
        super().release()
        self._reducer.release()
        self._scaled.release()
        for handle in self._handles:
            handle.remove()

    def _average_what_was_sent(self, *_: Any) -> None:
        if self._reducer.is_waiting:
            self._reducer.finish()


def broadcast(engine: Engine, tensors: Iterable[torch.Tensor], rank: int = 0) -> None:
    """Give every rank the values of one, in place, as `hvd.broadcast_parameters`, and of any dtype. Collective."""
    if engine.hvd.size() == 1:
        return
    with engine.waiting("sent parameters"):
        for flat in flattened_buckets(each for each in tensors if each.numel()):
            known = torch.view_as_real(flat) if flat.is_complex() else flat
            if known.dtype == torch.bfloat16:
                known = known.view(torch.int16)
            engine.hvd.broadcast_(known, rank, name=f"broadcast {engine.number()}")


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
