"""Convert the floating-point tensors of modules and nested batches to a dtype."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stratagem.precision.torch_private import apply_to_tensors


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make `dtype` the default dtype of this process within the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def convert_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert floating-point parameters and buffers in place; returns `module`.

    Unlike `Module.to(dtype)`, leaves complex tensors alone: 16 bits would drop their imaginary part.
    """
    apply_to_tensors(module, lambda tensor: _convert(tensor, dtype))
    return module


def convert_tensors(batch: Any, dtype: torch.dtype) -> Any:
    """Return `batch` with its floating-point tensors in `dtype`.

    Looks into tuples, named tuples, lists, mappings and dataclass instances, at any depth. A value without
    floating-point tensors of another dtype is returned itself, not a copy.
    """
    if isinstance(batch, torch.Tensor):
        return _convert(batch, dtype)
    if isinstance(batch, Mapping):
        return _rebuilt_mapping(batch, {key: convert_tensors(value, dtype) for key, value in batch.items()})
    if isinstance(batch, (tuple, list)):
        values = [convert_tensors(value, dtype) for value in batch]
        if all(new is old for new, old in zip(values, batch, strict=True)):
            return batch
        # A named tuple's constructor takes its fields one by one.
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changed = {}
        for field in dataclasses.fields(batch):
            old = getattr(batch, field.name)
            new = convert_tensors(old, dtype)
            if new is not old:
                changed[field.name] = new
        return _rebuilt_dataclass(batch, changed) if changed else batch
    return batch


def _convert(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _rebuilt_mapping(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    if all(values[key] is value for key, value in mapping.items()):
        return mapping
    if type(mapping) is dict:
        return values
    try:
        # Keeps what a subclass carries in addition to its items, such as an encoding or a default factory.
        rebuilt = copy.copy(mapping)
        for key, value in values.items():
            rebuilt[key] = value  # type: ignore[index]  # checked by trying
    except TypeError:
        return values
    return rebuilt


def _rebuilt_dataclass(batch: Any, changed: dict[str, Any]) -> Any:
    # Not dataclasses.replace: it calls __init__ and __post_init__ again, which may do anything.
    rebuilt = copy.copy(batch)
    for name, value in changed.items():
        # patch: frozen dataclasses
        object.__setattr__(rebuilt, name, value)
    return rebuilt
