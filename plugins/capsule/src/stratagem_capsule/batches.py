"""Batches as values that torch loads with `weights_only=True`, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from stratagem_capsule.errors import CapsuleError

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


def encoded(value: Any, copied: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    """Return a batch as tuples of a kind and its content.

    Args:
        value: tensors, numpy arrays, numbers, text and None in lists, tuples, mappings, named tuples and dataclasses.
        copied: returns what is kept of a tensor.

    Raises:
        CapsuleError: something else is in it.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            raise _unkept(value)
        return "tensor", copied(value)
    if type(value) in _SCALARS:
        return "value", value
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufc":
            raise _unkept(value)
        is_scalar = isinstance(value, np.generic)
        return "numpy", torch.from_numpy(np.array(value, copy=True)), is_scalar
    if type(value) is dict:
        return "dict", [(encoded(key, copied), encoded(item, copied)) for key, item in value.items()]
    if type(value) in (list, tuple):
        return type(value).__name__, [encoded(item, copied) for item in value]
    kind = type(value)
    if isinstance(value, Mapping):
        items = {key: value[key] for key in value}
    elif is_dataclass(value):
        items = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        items = dict(zip(kind._fields, value))
    else:
        raise _unkept(value)
    return "class", f"{kind.__module__}:{kind.__qualname__}", encoded(items, copied)


def decoded(kept: tuple[Any, ...], device: torch.device) -> Any:
    """Return the batch that `encoded` took apart, with its tensors on `device`.

    Classes are looked up among imported modules; nothing is imported for a capsule.

    Raises:
        CapsuleError: it has a class that the program doesn't have, or that is no mapping, dataclass or named tuple.
    """
    kind, content = kept[0], kept[1]
    if kind == "tensor":
        # A copy: a step may change its batch in place, and a later replay of it needs the same one.
        return content.to(device, copy=True)
    if kind == "value":
        return content
    if kind == "numpy":
        array = content.numpy().copy()
        return array[()] if kept[2] else array
    if kind == "dict":
        return {decoded(key, device): decoded(item, device) for key, item in content}
    if kind in ("list", "tuple"):
        items = [decoded(item, device) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "class":
        items = decoded(kept[2], device)
        cls = _found(content)
        return cls(items) if issubclass(cls, Mapping) else cls(**items)
    raise CapsuleError(f"the capsule has a batch with a {kind!r}, which this version doesn't know")


def _found(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    is_container = isinstance(found, type) and (
        issubclass(found, Mapping)
        or is_dataclass(found)
        or (issubclass(found, tuple) and hasattr(found, "_fields"))
    )
    if not is_container:
        raise CapsuleError(
            f"the capsule has batches of class {name}, which the program doesn't define as a mapping, dataclass or "
            "named tuple: import it where the model is defined"
        )
    return found


def _unkept(value: Any) -> CapsuleError:
    return CapsuleError(
        f"a batch has a {type(value).__module__}.{type(value).__qualname__}, which a capsule can't keep: let the "
        "loader return tensors, arrays, numbers and text in lists, tuples, mappings or dataclasses"
    )
