"""Parameters, memory and FLOPs of a module's layers, under any strategy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from stratagem.sdk.tensors import map_tensors
from stratagem_trainer.callbacks.model_summary import LayerSummary
from stratagem_trainer.local_tensors import local_of
from stratagem_trainer.torch_private import without_values


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes tensors use on this rank. Shared ones count once, lazy ones don't count."""
    storages: dict[Any, int] = {}
    for tensor in map(local_of, (each for each in tensors if not is_lazy(each))):
        storages[(tensor.device, tensor.data_ptr(), tensor.numel())] = tensor.numel() * tensor.element_size()
    return sum(storages.values())


def layers_of(module: nn.Module, max_depth: int) -> list[LayerSummary]:
    """Return the module and its submodules down to `max_depth`; -1 is all of them."""
    flops = count_flops(module)
    layers = []
    for name, each in module.named_modules():
        depth = name.count(".") + 1 if name else 0
        if max_depth in (-1, *range(depth, depth + 1)) or depth < max_depth:
            parameters = [p for p in each.parameters() if not is_lazy(p)]
            layers.append(
                LayerSummary(
                    name,
                    _kind(each),
                    sum(p.numel() for p in parameters),
                    sum(p.numel() for p in parameters if p.requires_grad),
                    None if flops is None else flops.get(name, 0),
                )
            )
    return layers


def count_flops(module: nn.Module) -> dict[str, int] | None:
    """Count the FLOPs of a forward with `example_input_array`, without computing it.

    Returns:
        Name of a submodule → FLOPs, "" for the whole module; None without an input, or if the forward needs values.
    """
    example = getattr(module, "example_input_array", None)
    if example is None:
        return None
    arguments = map_tensors(lambda tensor: torch.empty_like(tensor, device="meta"), example)
    counter = FlopCounterMode(display=False)
    shell = without_values(module, {}).eval()
    shell._trainer = None  # nothing is logged
    try:
        with torch.no_grad(), counter:
            if isinstance(arguments, dict):
                shell(**arguments)
            else:
                shell(*(arguments if isinstance(arguments, tuple) else (arguments,)))
    except Exception:  # the forward needs values, or tensors that are neither parameters nor buffers
        return None
    root = type(module).__name__
    counted = {
        name.removeprefix(f"{root}.") if name != "Global" else "": sum(operations.values())
        for name, operations in counter.get_flop_counts().items()
    }
    counted.setdefault("", counter.get_total_flops())
    return counted


def _kind(module: nn.Module) -> str:
    return type(module).__name__
