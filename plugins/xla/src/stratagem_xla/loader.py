"""Batches on their way to XLA devices, the last one filled up where the module says which samples count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from stratagem_sharding.batch_size import batch_size_of
from torch import nn

from stratagem.sdk.tensors import map_tensors, to_device
from stratagem_xla.sharding import Layout, unwrapped

MASK = "sample_mask"
"""Parameter of a step that gets a vector of booleans: which samples are real."""


@dataclass
class Padded:
    """A batch with repeated samples at its end."""

    original: Any
    """What callbacks see, and what weighs means."""
    batch: Any
    samples: int
    """How many are real."""
    size: int
    mask: torch.Tensor


class Loaded:
    """An iterable over a loader's batches, each on the device and cut along its samples.

    Args:
        loader: gives batches.
        device: where they go.
        layout: how they lie there.
        before: called before each batch, to send off what is pending.
        pads: gets each batch with its mask before it is yielded; None pads nothing.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device,
        layout: Layout,
        before: Callable[[], None],
        pads: Callable[[Padded], None] | None,
    ) -> None:
        self._loader, self._device, self._layout = loader, device, layout
        self._before, self._pads = before, pads

    def __iter__(self) -> Iterator[Any]:
        full: int | None = None
        for batch in self._loader:
            self._before()
            size = batch_size_of(unwrapped(batch))
            full = size if full is None or (size is not None and size > full) else full
            placed = self._placed(batch, size)
            if self._pads is not None and size is not None and full is not None:
                self._pads(self._filled(batch, placed, size, full))
            yield placed

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # an Iterable without a length raises TypeError here

    def _placed(self, batch: Any, size: int | None) -> Any:
        placed = to_device(batch, self._device)
        self._layout.shard_batch(placed, size)
        return placed

    def _filled(self, batch: Any, placed: Any, size: int, full: int) -> Padded:
        filled = self._placed(fill(batch, size, full), full) if size < full else placed
        mask = (torch.arange(full) < size).to(self._device)
        self._layout.shard_batch(mask, full)
        return Padded(placed, filled, size, full, mask)


def fill(batch: Any, size: int, full: int) -> Any:
    """Return `batch` with its samples repeated from the first on, until they are `full`.

    Tensors with an entry per sample are filled up, everything else stays as it is.
    """
    index = torch.arange(full) % size

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        per_sample = tensor.dim() and tensor.shape[0] == size
        return tensor[index.to(tensor.device)] if per_sample else tensor

    return map_tensors(filled, batch)


def takes_mask(original_module: nn.Module) -> frozenset[str]:
    """Names of the steps of the user's module that take `sample_mask`."""
    steps = ("training_step", "validation_step", "test_step", "predict_step")
    methods = {step: getattr(original_module, step, None) for step in steps}
    return frozenset(
        step for step, method in methods.items() if callable(method) and MASK in signature(method).parameters
    )
