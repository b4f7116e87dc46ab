"""Measures the cost of each layer on a micro-batch, for an automatic balance."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from stratagem_pipeline.values import form_and_tensors

if TYPE_CHECKING:
    from stratagem import Precision

REPEATS = 3
"""Number of timed runs, after one warm-up. The fastest counts."""


def parameter_bytes(layers: Sequence[nn.Module]) -> list[float]:
    """Return the bytes of the parameters and buffers of each layer. They may be on "meta"."""
    return [
        float(
            sum(tensor.numel() * tensor.element_size() for tensor in (*layer.parameters(), *layer.buffers()))
        )
        for layer in layers
    ]


def measured(
    what: str,
    layers: Sequence[nn.Module],
    entry: Any,
    materialized: Callable[[nn.Module], AbstractContextManager[None]],
    precision: Precision,
    call_layer: Callable[[nn.Module, Any], Any],
) -> list[float]:
    """Run the layers one after the other, and return the cost of each.

    Args:
        what: "activations", the bytes that a layer keeps for backward, or "time", the seconds of its forward
            and backward.
        layers: in their order; their buffers don't change.
        entry: the input of the first layer.
        materialized: a context in which a layer has its parameters.
        precision: its autocast is used.
        call_layer: calls a layer with its input.
    """
    costs, value = [], entry
    with torch.random.fork_rng(devices=[]):
        for layer in layers:
            with (
                materialized(layer),
                _Kept(layer),
                precision.autocast() or nullcontext(),
                torch.enable_grad(),
            ):
                call = partial(call_layer, layer)
                cost, value = (_saved if what == "activations" else _timed)(layer, call, value)
            costs.append(cost)
    return costs


def _saved(layer: nn.Module, call: Callable[[Any], Any], value: Any) -> tuple[float, Any]:
    own = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        output = call(_leaves(value))
        # The output keeps all saved tensors alive until here, so that no address is used twice.
        return float(sum(sizes.values())), output


def _timed(layer: nn.Module, call: Callable[[Any], Any], value: Any) -> tuple[float, Any]:
    best = float("inf")
    for _ in range(1 + REPEATS):
        given = _leaves(value)
        _, inputs = form_and_tensors(given)
        _wait(inputs)
        began = time.perf_counter()
        output = call(given)
        _, results = form_and_tensors(output)
        wanted = [p for p in (*inputs, *layer.parameters()) if p.requires_grad]
        outputs = [result for result in results if result.requires_grad]
        if wanted and outputs:
            ones = [torch.ones_like(result) for result in outputs]
            torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
        _wait(results)
        best = min(best, time.perf_counter() - began)
    return best, output


def _leaves(value: Any) -> Any:
    """Return copies that require gradients if they are floating-point, and that a layer may change in place."""
    form, tensors = form_and_tensors(value)
    return form.value([t.detach().requires_grad_(t.is_floating_point()).clone() for t in tensors])


def _wait(tensors: Sequence[torch.Tensor]) -> None:
    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        torch.get_device_module(device).synchronize(device)


class _Kept:
    """Restores a layer's buffers on exit."""

    def __init__(self, layer: nn.Module) -> None:
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in layer.buffers()]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
