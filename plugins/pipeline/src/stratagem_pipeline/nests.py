"""Nests of values as a structure and a list: what is sent from rank to rank, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

Structure = Any
"""None for a leaf; else (type, keys or None, structures). Picklable, and equal for equal structures."""


def flattened(value: Any) -> tuple[Structure, list[Any]]:
    """Return the structure of nested tuples, lists, mappings and dataclasses, and their leaves in order."""
    leaves: list[Any] = []
    return _walk(value, leaves), leaves


def rebuilt(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Put leaves back into their structure."""
    return _build(structure, iter(leaves))


def _walk(value: Any, leaves: list[Any]) -> Structure:
    if isinstance(value, Mapping):
        return (type(value), tuple(value), tuple(_walk(each, leaves) for each in value.values()))
    if isinstance(value, (list, tuple)):
        return (type(value), None, tuple(_walk(each, leaves) for each in value))
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in fields(value) if field.init)
        return (type(value), names, tuple(_walk(getattr(value, name), leaves) for name in names))
    leaves.append(value)
    return None


def _build(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, keys, inner = structure
    values = [_build(each, leaves) for each in inner]
    if keys is None:
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    if issubclass(kind, Mapping):
        return dict(zip(keys, values)) if kind is dict else kind(dict(zip(keys, values)))
    return kind(**dict(zip(keys, values)))
