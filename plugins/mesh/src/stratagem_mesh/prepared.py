"""What the loop calls per step under a composition of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from stratagem_fsdp import FSDPPrepared, Sharded
from stratagem_sharding.rank_buffers import RankBuffers
from stratagem_sharding.whole_tensors import on_shards
from torch.distributed.tensor import DTensor

from stratagem import Clipping, CombinationError, SetupRequest
from stratagem.sdk.axes import Axis, AxisSteps

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

_NUMBERS = count()
_PREPARED: WeakValueDictionary[int, ComposedPrepared] = WeakValueDictionary()
"""In order of creation, which is the same on all ranks: completing gradients is collective."""


class ComposedPrepared(FSDPPrepared):
    """A module that several axes have transformed. Every forward is collective, also in an evaluation.

    Args:
        request: as the `setup` hook received it; its module has been transformed.
        sharded: its sharded units.
        axes: those with more than one rank, in the order of the mesh.
        steps: the axes' work per step, in the order in which the axes were applied.
    """

    strategy_name = "composition"
    advice = (
        "use them within their module's forward, or give the axis shard auto_wrap_policy=[], by which all "
        "parameters stay gathered throughout a step"
    )

    def __init__(
        self, request: SetupRequest, sharded: Sharded, axes: Sequence[Axis], steps: Sequence[AxisSteps]
    ) -> None:
        self._axes, self._axis_steps = tuple(axes), tuple(steps)
        rank_buffers = RankBuffers(request.original_module, request.collectives, has_option=False)
        super().__init__(request, sharded, rank_buffers)
        has_shards = any(isinstance(each, DTensor) for each in self.original_module.parameters())
        self.leaves_module_sharded = has_shards and self._world_size > 1
        self._completing = [each for each in self._axis_steps if each.has_gradients_to_complete]
        self._completed: set[int] = set()
        _PREPARED[next(_NUMBERS)] = self
        for each in self._axis_steps:
            each.begin(self)

    # Per step -----------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._computing():
            output = super().forward(*args, **kwargs)
            for each in self._axis_steps:
                output = each.map_output(output)
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        # A backward may reach several modules: a GAN's generator loss also gives the critic gradients.
        reached = [each for each in _PREPARED.values() if each._collectives is self._collectives]
        kept = [each._set_aside() for each in reached]
        with self._computing():
            super().backward(loss, **kwargs)
            if not self.reduces:
                self._average_whole()  # module hooks may read gradients within an accumulation window
        for each, (completed, gradients) in zip(reached, kept):
            each._add_back(completed, gradients)

    def _set_aside(self) -> tuple[list[int], list[tuple[nn.Parameter, torch.Tensor]]]:
        """Set completed gradients aside: autograd can't accumulate new ones in place into another DTensor layout."""
        if not self._completing:
            return [], []  # keep the tensors: the user's code may hold references to them
        kept = [
            (parameter, parameter.grad)
            for index in self._completed
            for parameter in self._parameters[index]
            if parameter.grad is not None
        ]
        for parameter, _ in kept:
            parameter.grad = None
        completed = list(self._completed) if kept else []
        self._completed.clear()
        return completed, kept

    def _add_back(self, completed: list[int], kept: list[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Complete new gradients, too, and add them to those that were set aside. Collective."""
        for index in completed:
            self._complete(index)
        for parameter, before in kept:
            parameter.grad = before if parameter.grad is None else parameter.grad + before

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        self._complete(index)
        return super().clip(index, clipping)

    def complete_gradients(self, index: int) -> None:
        super().complete_gradients(index)
        self._complete(index)

    def _before_step(self, index: int) -> None:
        super()._before_step(index)
        self._complete(index)

    def _complete(self, index: int) -> None:
        """Complete gradients over every axis, once after each backward. Collective."""
        if index not in self._completed:
            self._completed.add(index)
            with on_shards():
                for each in self._completing:
                    each.complete_gradients(self._parameters[index])

    def _average_whole(self) -> None:
        with on_shards():
            for each in self._axis_steps:
                each.after_backward()

    def averaged_ranks(self) -> int:
        for axis in self._axes:
            if not axis.averages_gradients:
                raise CombinationError(
                    f"along axis {axis.name!r} each rank steps by its own gradients, which weights of the losses on "
                    "all ranks can't divide: return the mean of the losses, or leave the axis out"
                )
        return super().averaged_ranks()

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        applied = super().step(index, closure)
        with on_shards():
            for each in self._axis_steps:
                each.after_step(self, index)
        return applied

    # Copies -------------------------------------------------------------------------------------

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        if all(axis.keeps_copies_equal for axis in self._axes):
            yield from super().replicas()

    def _make_equal(self) -> None:
        with on_shards():
            for each in self._axis_steps:
                each.make_equal(self)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.reshard()
        self._make_equal()
        with super().evaluating():
            yield

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self.reshard()
        self._make_equal()
        return super().model_tensors()

    def restore_module(self) -> None:
        super().restore_module()
        self._make_equal()

    def release(self) -> None:
        super().release()
        self._completed.clear()
        for each in self._axis_steps:
            each.release()

    # --------------------------------------------------------------------------------------------

    def _computing(self) -> AbstractContextManager[Any]:
        contexts = ExitStack()
        for each in self._axis_steps:
            contexts.enter_context(each.computing())
        return contexts

    def _refuse_scaling(self) -> None:
        """Do nothing: no declared precision scales the loss."""
