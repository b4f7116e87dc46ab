"""A batch to look at before the first: for strategies that measure or trace what a step does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from stratagem.sdk.loops import batch_size_in, global_kept, reads_by_sampler


def sample_of(loader: Iterable[Any]) -> Callable[[], Any] | None:
    """Return what makes a batch as `loader` would, of the first samples; None where that is not available.

    It reads the dataset itself: no sampler moves on, no worker starts, and random number generators are
    afterwards as they were.

    Args:
        loader: a DataLoader over map-style data; of anything else a batch that was taken would be missing.
    """
    if not isinstance(loader, DataLoader) or not reads_by_sampler(loader):
        return None
    return partial(_first, loader)


def _first(loader: DataLoader[Any]) -> Any:
    size = batch_size_in(loader)
    dataset: Any = loader.dataset
    with global_kept():
        if size is None:
            return loader.collate_fn(dataset[0])
        return loader.collate_fn([dataset[index] for index in range(min(size, len(dataset)))])
