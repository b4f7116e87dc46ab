"""Flattens nested values into a structure and a list of leaves, to send and compare them between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

from stratagem.sdk.tensors import Container, opened

Structure = Union[Container, None]
"""None for a leaf; else a container of structures. Picklable, and equal for equal structures."""


def flattened(value: Any) -> tuple[Structure, list[Any]]:
    """Return the structure of nested tuples, lists, mappings and dataclasses, and their leaves in order."""
    leaves: list[Any] = []
    return _walk(value, leaves), leaves


def rebuilt(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Put leaves back into their structure."""
    return _build(structure, iter(leaves))


def _walk(value: Any, leaves: list[Any]) -> Structure:
    container = opened(value)
    if container is None:
        leaves.append(value)
        return None
    return container._replace(items=tuple(_walk(each, leaves) for each in container.items))


def _build(structure: Structure, leaves: Iterator[Any]) -> Any:
    return (
        next(leaves)
        if structure is None
        else structure.filled([_build(each, leaves) for each in structure.items])
    )
