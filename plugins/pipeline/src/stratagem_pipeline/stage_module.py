"""`StageModule`: some layers as torch's pipeline stages call them, on a flat list of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stratagem_pipeline.changes import buffers_kept
from stratagem_pipeline.torch_private import is_view
from stratagem_pipeline.values import Form, taken_apart

if TYPE_CHECKING:
    from stratagem import Precision


class StageModule(nn.Module):
    """The layers of one stage.

    Args:
        layers: called one after the other; they stay what they are in the user's module.
        entry: the form of what the first is called with.
        is_last: whether what the last returns is the pipelined module's output.
        precision: whose autocast they run under.
        recompute: keep a layer's input alone, and compute the layer again in backward.
        outer: parameters that the loss is computed with beside the layers: where gradients of inputs and
            of weights are computed apart, torch only looks for those of the stage.
        hand_over: makes of what the last layer returned tensors that can be sent.
        call_layer: calls a layer with what goes into it.
        shows_layers: whether torch finds the layers among the submodules, as schedules need that compute gradients
            of inputs and of weights apart. When torch first runs a stage, it frees what `fully_shard` has gathered
            of the modules that it finds, and drops their gradients, those of earlier micro-batches too.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        entry: Form,
        *,
        is_last: bool,
        precision: Precision,
        recompute: bool,
        outer: Sequence[nn.Parameter] = (),
        hand_over: Callable[[Any], Any],
        call_layer: Callable[[nn.Module, Any], Any],
        shows_layers: bool,
    ) -> None:
        super().__init__()
        self.layers: Sequence[nn.Module] = tuple(layers)
        self.shown, self.outer = nn.ModuleList(layers if shows_layers else ()), nn.ParameterList(outer)
        self.entry, self.is_last = entry, is_last
        self.exit: Form | None = None
        """The form of what the last layer returned."""
        self.leaves: list[tuple[torch.Tensor, ...]] = []
        """What entered, as leaves that gather gradients, where `gathers` says so."""
        self.gathers: tuple[bool, ...] = ()
        """Of each tensor that enters, whether its gradient is wanted."""
        self._precision, self._recompute, self._hand_over = precision, recompute, hand_over
        self._call_layer = call_layer
        # A layer may change its input in place, but not what another rank sent and backward needs.
        self._copies = getattr(next(iter(layers), None), "inplace", False)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the stage. Inputs and outputs are tensors in the order that the form gives."""
        if any(self.gathers) and torch.is_grad_enabled():
            tensors = tuple(t.detach().requires_grad_(wanted) for t, wanted in zip(tensors, self.gathers))
            self.leaves.append(tensors)
        tensors = tuple(_handed_over(each) if each.requires_grad else each for each in tensors)
        if self._copies:
            tensors = tuple(tensor.clone() for tensor in tensors)
        value = self.entry.value(tensors)
        with self._precision.autocast() or nullcontext():
            for layer in self.layers:
                value = self._layer(layer, value)
            value = self._hand_over(value)
        self.exit, results = taken_apart(value)
        return results if self.is_last else tuple(_sendable(result) for result in results)

    def _layer(self, layer: nn.Module, value: Any) -> Any:
        # A layer that works in place keeps nothing of its input, which it couldn't be computed from again.
        if self._recompute and torch.is_grad_enabled() and not getattr(layer, "inplace", False):
            return checkpoint(self._call_layer, layer, value, use_reentrant=False)
        return self._call_layer(layer, value)

    @contextmanager
    def without_trace(self) -> Iterator[None]:
        """Around a forward that is only to tell shapes: buffers are afterwards as they were."""
        with ExitStack() as stack:
            for layer in self.layers:
                stack.enter_context(buffers_kept(layer))
            stack.enter_context(torch.no_grad())
            yield


class _Handover(torch.autograd.Function):
    """Forwards a tensor as it is, and makes its gradient contiguous, as sending it to another rank requires."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0].contiguous()


def _handed_over(tensor: torch.Tensor) -> torch.Tensor:
    handed: torch.Tensor = _Handover.apply(tensor)  # type: ignore[no-untyped-call]  # torch has no types for it
    return handed


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy, which stays part of the autograd graph where possible."""
    if is_view(tensor) or not tensor.is_contiguous():  # torch detaches what it has sent, which views refuse
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if tensor.is_floating_point() and torch.is_grad_enabled() and not tensor.requires_grad:
        # What the next stage sends back has to find a place: frozen layers don't make one.
        tensor = tensor.detach().requires_grad_()
    return tensor
