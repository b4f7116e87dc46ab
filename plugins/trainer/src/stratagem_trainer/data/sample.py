"""A sample batch before training, for strategies that measure or trace a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from stratagem.sdk.loops import batch_size_in, global_kept, reads_by_sampler


def sample_of(loader: Iterable[Any]) -> Callable[[], Any] | None:
    """Return a function that returns a batch of the first samples, collated by `loader`; None if it can't.

    It reads the dataset directly: it advances no sampler and starts no worker, and random number generators are
    restored.

    Args:
        loader: a DataLoader over a map-style dataset. A batch taken from anything else would be missing in training.
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
