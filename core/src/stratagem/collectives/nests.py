"""Nests: values in lists, tuples, named tuples, mappings and dataclasses, at any depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Callable, NamedTuple

import torch


class Container(NamedTuple):
    """The type, the keys and the items of a container."""

    kind: type
    keys: tuple[Any, ...] | None
    """Keys of a mapping, or names of a dataclass's constructor fields; None for lists and tuples."""
    items: tuple[Any, ...]

    def filled(self, items: Sequence[Any]) -> Any:
        """Return a container of the same kind with other items."""
        kind: Any = self.kind
        if self.keys is None:
            # A named tuple's constructor takes its fields one by one.
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        values = dict(zip(self.keys, items))
        if issubclass(kind, Mapping):
            return values if kind is dict else kind(values)
        return kind(**values)


def opened(value: Any) -> Container | None:
    """Return the type, the keys and the items of a container; None for any other value."""
    if isinstance(value, Mapping):
        return Container(type(value), tuple(value), tuple(value.values()))
    if isinstance(value, (list, tuple)):
        return Container(type(value), None, tuple(value))
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in fields(value) if field.init)
        return Container(type(value), names, tuple(getattr(value, name) for name in names))
    return None


def map_values(function: Callable[[torch.Tensor], Any], nest: Any, device: torch.device) -> Any:
    """Return `nest` with `function` applied to every value. Numbers become tensors on `device` before."""
    container = opened(nest)
    if container is not None:
        return container.filled([map_values(function, item, device) for item in container.items])
    return function(torch.tensor(nest, device=device) if isinstance(nest, (bool, int, float)) else nest)


def leaves_in(value: Any) -> Iterator[Any]:
    """Yield the values in a nest that aren't containers, in order; `value` itself if it isn't one."""
    container = opened(value)
    if container is None:
        yield value
        return
    for item in container.items:
        yield from leaves_in(item)
