"""Begins a loader's epoch after its first batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from stratagem.data.sharing import reads_by_sampler


def iterate_after(loader: Any, count: int) -> Iterator[Any]:
    """Return an iterator over `loader` without its first `count` batches.

    If indices made in this process decide what is read, the skipped batches' indices are drawn, and nothing is
    loaded. From any other iterable, the batches are read and dropped. Either way, all random numbers of skipped
    batches have been drawn when this returns.
    """
    if count == 0:
        return iter(loader)
    if reads_by_sampler(loader):
        iterator, skipped = _skip_indices(loader, count)
        if skipped:
            return iterator
    else:
        iterator = iter(loader)
    return drop_first(iterator, count)


def drop_first(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """Take `count` items of `iterator`, or all if it has fewer, and return it."""
    next(islice(iterator, count, count), None)
    return iterator


def _skip_indices(loader: Any, count: int) -> tuple[Iterator[Any], bool]:
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    original = getattr(loader, name)
    skipping = _Skipping(original, count)
    # DataLoader refuses to change its samplers, so that an iterator and its loader never disagree. Here they don't
    # disagree: the iterator takes its sampler when it is made, and the loader gets its own back.
    # patch: loader samplers
    object.__setattr__(loader, name, skipping)
    try:
        iterator = iter(loader)
        skipping.advance()
    finally:
        # patch: loader samplers
        object.__setattr__(loader, name, original)
        skipping.count = 0
    return iterator, skipping.iterator is not None


class _Skipping:
    """Wraps a sampler. While `count` isn't 0, iterations begin after that many items."""

    def __init__(self, sampler: Any, count: int) -> None:
        self.sampler, self.count = sampler, count
        self.iterator: _SkippingIterator | None = None

    def __iter__(self) -> Iterator[Any]:
        if not self.count:
            return iter(self.sampler)
        self.iterator = _SkippingIterator(iter(self.sampler), self.count)
        return self.iterator

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def advance(self) -> None:
        if self.iterator is not None:
            self.iterator.advance()


class _SkippingIterator:
    """Skips items at the first `next`, not when it is made, because a loader draws its workers' seed in between."""

    def __init__(self, iterator: Iterator[Any], count: int) -> None:
        self.iterator, self.count = iterator, count

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.advance()
        return next(self.iterator)

    def advance(self) -> None:
        count, self.count = self.count, 0
        drop_first(self.iterator, count)
