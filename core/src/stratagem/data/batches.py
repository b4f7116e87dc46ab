"""Batches on their way to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch

from stratagem.collectives.nests import opened


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """Return `batch` with `function` applied to every tensor in it.

    Goes into lists, tuples, named tuples, mappings and dataclasses; other values stay as they are.
    """
    if isinstance(batch, torch.Tensor):
        return function(batch)
    container = opened(batch)
    if container is None:
        return batch
    return container.filled([map_tensors(function, item) for item in container.items])


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch` with its tensors, and whatever else has a method `to`, on `device`; see `map_tensors`.

    Copies from pinned memory don't wait for the device.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    container = opened(batch)
    if container is None:
        return batch
    return container.filled([to_device(item, device) for item in container.items])


def moved(loader: Iterable[Any], device: torch.device) -> Iterable[Any]:
    """Return `loader` with batches on `device`; the loader itself where its batches are there already."""
    return loader if device.type == "cpu" else _Moved(loader, device)


class _Moved:
    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield to_device(batch, self._device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # an Iterable without a length raises TypeError here
