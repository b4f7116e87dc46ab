"""Moves batches to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
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
    """Return `batch` with its tensors, and other objects that have a method `to`, on `device`; see `map_tensors`.

    Copies from pinned memory don't wait for the device.
    """
    return _moved_by(lambda tensor: tensor.to(device, non_blocking=True), batch, device)


def _moved_by(move: Callable[[torch.Tensor], torch.Tensor], batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return move(batch)
    if hasattr(batch, "to"):
        return batch.to(device)
    container = opened(batch)
    if container is None:
        return batch
    return container.filled([_moved_by(move, item, device) for item in container.items])


def moved(loader: Iterable[Any], device: torch.device) -> Iterable[Any]:
    """Return `loader` with batches on `device`; the loader itself for the CPU.

    If the device has streams, tensors are copied on a separate stream. The host runs ahead of the device, so that the
    copy of the next batch overlaps the current step.
    """
    return loader if device.type == "cpu" else _Moved(loader, device)


class _Moved:
    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Iterator[Any]:
        stream = _copy_stream(self._device)
        for batch in self._loader:
            yield to_device(batch, self._device) if stream is None else _copied_on_stream(batch, stream)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # an Iterable without a length raises TypeError here


def has_events(device: torch.device) -> bool:
    """Return whether a device has several streams, and events that order their work.

    The CPU hasn't, nor has a device with a single stream, which runs all queued work in order.

    Args:
        device: any; its index doesn't matter.
    """
    return _copy_stream(device) is not None


@cache
def _copy_stream(device: torch.device) -> torch.Stream | None:
    """Return the stream on which batches are copied to a device; None if it has only one, or doesn't support more."""
    here = torch.accelerator.current_accelerator()
    if here is None or here.type != device.type:
        return None
    try:
        stream = torch.Stream(device=device)
        torch.empty(1, device=device).record_stream(stream)
    except RuntimeError:
        return None
    return None if stream == torch.accelerator.current_stream(device) else stream


def _copied_on_stream(batch: Any, stream: torch.Stream) -> Any:
    device, copies = stream.device, list[torch.Tensor]()

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        # For subclasses and other layouts it isn't known which memory the stream uses. A tensor that is on a device
        # already was computed on another stream.
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
        if not is_plain or tensor.device.type != "cpu":
            return tensor.to(device, non_blocking=True)
        with stream:
            copied = tensor.to(device, non_blocking=True)
        copies.append(copied)
        return copied

    result = _moved_by(copy, batch, device)
    if copies:
        current = torch.accelerator.current_stream(device)
        current.wait_stream(stream)
        for each in copies:
            # The copying stream owns the memory. Without this, it would reuse the memory for the next batch as soon
            # as the tensor is freed, while the current stream may still read it.
            each.record_stream(current)
    return result
