"""`StageModule`: wraps the layers of a stage for torch's `PipelineStage`, which passes a flat list of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stratagem_pipeline.changes import buffers_kept
from stratagem_pipeline.torch_private import is_view
from stratagem_pipeline.values import Form, form_and_tensors

if TYPE_CHECKING:
    from stratagem import Precision


class StageModule(nn.Module):
    """The layers of one stage.

    Args:
        layers: called one after the other; the user's module keeps them, too.
        entry: the form of the first layer's input.
        is_last: whether this is the last stage, whose output is the pipelined module's.
        precision: the layers run under its autocast.
        recompute: keep only a layer's input, and compute the layer again in backward.
        outer: further parameters that the loss uses. Schedules that split the backward compute gradients
            only for parameters of the stage module, so these must be among them.
        hand_over: converts the last layer's output to tensors that can be sent.
        call_layer: calls a layer with its input.
        shows_layers: whether to register the layers as submodules, as schedules that split the backward need.
            Otherwise leave it False: when torch first runs a stage, it reshards the `fully_shard` modules that it
            finds, and drops their gradients, those of earlier micro-batches included.
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
        """The form of the last layer's output."""
        self.leaves: list[tuple[torch.Tensor, ...]] = []
        """Inputs of each micro-batch as autograd leaves; those for which `gathers` is True get gradients."""
        self.gathers: tuple[bool, ...] = ()
        """For each input tensor, whether its gradient is needed."""
        self._precision, self._recompute, self._hand_over = precision, recompute, hand_over
        self._call_layer = call_layer
        # An in-place first layer gets copies, since backward needs the tensors that another rank sent.
        self._copies = getattr(next(iter(layers), None), "inplace", False)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the stage. Inputs and outputs are flat tensors, in the order of their forms."""
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
        self.exit, results = form_and_tensors(value)
        return results if self.is_last else tuple(_sendable(result) for result in results)

    def _layer(self, layer: nn.Module, value: Any) -> Any:
        # An in-place layer overwrites its input, so it can't be computed again.
        if self._recompute and torch.is_grad_enabled() and not getattr(layer, "inplace", False):
            return checkpoint(self._call_layer, layer, value, use_reentrant=False)
        return self._call_layer(layer, value)

    @contextmanager
    def without_trace(self) -> Iterator[None]:
        """Run a forward that only finds shapes: without gradients, and buffers are restored."""
        with ExitStack() as stack:
            for layer in self.layers:
                stack.enter_context(buffers_kept(layer))
            stack.enter_context(torch.no_grad())
            yield


class _Handover(torch.autograd.Function):
    """Identity whose backward makes the gradient contiguous, as sending it to another rank requires."""

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
    if (
        is_view(tensor) or not tensor.is_contiguous()
    ):  # torch detaches sent tensors in place, which fails for views
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if tensor.is_floating_point() and torch.is_grad_enabled() and not tensor.requires_grad:
        # The next stage sends a gradient back for each tensor. Outputs of frozen layers need a place for it.
        tensor = tensor.detach().requires_grad_()
    return tensor
