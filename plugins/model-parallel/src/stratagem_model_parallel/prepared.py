"""What the loop calls per step under model_parallel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from stratagem_fsdp import FSDPPrepared, Sharded
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from stratagem import Clipping, SetupRequest
from stratagem.sdk.tensors import map_tensors
from stratagem_model_parallel.replicas import Replicas
from stratagem_model_parallel.torch_private import is_unawaited

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

_NUMBERS = count()
_PREPARED: WeakValueDictionary[int, ModelParallelPrepared] = WeakValueDictionary()
"""In the order in which they were made, which is that of all ranks: settling gradients is collective."""


class ModelParallelPrepared(FSDPPrepared):
    """A module whose layers are split. Every forward is collective, that of an evaluation too.

    Args:
        request: as the `setup` hook received it; its module has been split.
        sharded: what of it is sharded over the mesh's data dimension.
        mesh: ("data", "tensor").
        loss_parallel: cross entropies are computed from shards of the vocabulary.
    """

    strategy_name = "model_parallel"
    advice = (
        "use them within their module's forward, or choose ddp, or fsdp with auto_wrap_policy=[], by which all "
        "parameters stay gathered throughout a step"
    )

    def __init__(
        self, request: SetupRequest, sharded: Sharded, mesh: DeviceMesh, loss_parallel: bool
    ) -> None:
        super().__init__(request, sharded)
        self._loss_parallel = loss_parallel
        self._replicas = Replicas(self.original_module, mesh)
        self._settled: set[int] = set()
        _PREPARED[next(_NUMBERS)] = self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._from_shards():
            return map_tensors(_whole, super().forward(*args, **kwargs))

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        # A generator's loss is computed with the critic, too, whose parameters get gradients then.
        reached = [each for each in _PREPARED.values() if each._collectives is self._collectives]
        kept = [each._set_aside() for each in reached]
        with self._from_shards():
            super().backward(loss, **kwargs)
        for each, (settled, gradients) in zip(reached, kept):
            each._add_back(settled, gradients)

    def _set_aside(self) -> tuple[list[int], list[tuple[nn.Parameter, torch.Tensor]]]:
        """Take away gradients that a step left: new ones may not be added in place to those of another layout."""
        if self._world_size == 1:
            return [], []  # there is one layout, and the user's code may hold the gradients' memory
        kept = [
            (parameter, parameter.grad)
            for index in self._settled
            for parameter in self._parameters[index]
            if parameter.grad is not None
        ]
        for parameter, _ in kept:
            parameter.grad = None
        settled = list(self._settled) if kept else []
        self._settled.clear()
        return settled, kept

    def _add_back(self, settled: list[int], kept: list[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Bring new gradients into the same layout, and add them to what was set aside. Collective."""
        for index in settled:
            self._settle(index)
        for parameter, before in kept:
            parameter.grad = before if parameter.grad is None else parameter.grad + before

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        self._settle(index)
        return super().clip(index, clipping)

    def complete_gradients(self, index: int) -> None:
        super().complete_gradients(index)
        self._settle(index)

    def _before_step(self, index: int) -> None:
        super()._before_step(index)
        self._settle(index)

    def _settle(self, index: int) -> None:
        """Bring gradients into the layout of their parameters, once after each backward. Collective."""
        if index not in self._settled:
            self._settled.add(index)
            self._replicas.settle(self._parameters[index])

    def release(self) -> None:
        super().release()
        self._settled.clear()

    def _from_shards(self) -> AbstractContextManager[Any]:
        return loss_parallel() if self._loss_parallel else nullcontext()

    def _refuse_scaling(self) -> None:
        """Loss scaling isn't among the precisions declared."""


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor whose values are there.

    The result of a collective that still continues waits for it before the next operation on it, but not before it
    is pickled or copied as memory.
    """
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.clone() if is_unawaited(tensor) else tensor
