"""`CombinedLoader`: read several loaders as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from stratagem.errors import ConfigError
from stratagem.sdk.loops import holds_loaders
from stratagem_trainer.data.sample import sample_of

Mode = Literal["min_size", "max_size_cycle", "max_size", "sequential"]
"""How to read loaders of different lengths."""

_END = object()


class CombinedLoader:
    """Several loaders in one, for `Trainer`, or to iterate.

    Iterating yields (batch, batch_idx, dataloader_idx). A batch is the collection in which you passed the loaders,
    with a batch of each loader in its place. In the mode "sequential", it is a batch of the loader `dataloader_idx`
    alone.

    Args:
        iterables: loaders in lists, tuples and dicts, which may be nested.
        mode: "min_size" stops with the shortest loader. "max_size_cycle" stops with the longest, and restarts the
            others. "max_size" stops with the longest, and yields None for loaders that have ended. "sequential" reads
            one loader after the other.

    Raises:
        ConfigError: the mode is unknown.
    """

    def __init__(self, iterables: Any, mode: Mode = "min_size") -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"CombinedLoader got mode={mode!r}; allowed are {', '.join(get_args(Mode))}")
        self.iterables, self.mode = iterables, mode

    @property
    def flattened(self) -> list[Any]:
        """The loaders, in order."""
        return leaves_of(self.iterables)

    def __len__(self) -> int:
        return combined_length([len(loader) for loader in self.flattened], self.mode) or 0

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        loaders = self.flattened
        if self.mode == "sequential":
            for which, loader in enumerate(loaders):
                yield from ((batch, index, which) for index, batch in enumerate(loader))
            return
        begin = [partial(iter, loader) for loader in loaders]
        for index, batches in enumerate(side_by_side(begin, self.mode)):
            yield filled(self.iterables, iter(batches)), index, 0


def side_by_side(
    begin: Sequence[Callable[[], Iterator[Any]]], mode: str, was_over: Sequence[bool] = ()
) -> Iterator[list[Any]]:
    """Start all iterators, and return an iterator over lists of one batch each; None for one that has ended.

    Args:
        begin: functions that return an iterator of each loader. "max_size_cycle" calls one again to restart a loader.
        mode: "min_size", "max_size" or "max_size_cycle".
        was_over: whether each loader has ended before, for a resumed epoch; empty if none has.
    """
    over = list(was_over) or [False] * len(begin)
    return _side_by_side(begin, [start() for start in begin], mode, over)


def _side_by_side(
    begin: Sequence[Callable[[], Iterator[Any]]], iterators: list[Iterator[Any]], mode: str, over: list[bool]
) -> Iterator[list[Any]]:
    while True:
        batches: list[Any] = []
        for which, iterator in enumerate(iterators):
            batch = _END if over[which] and mode == "max_size" else next(iterator, _END)
            if batch is _END and mode == "min_size":
                return
            if batch is _END:
                over[which] = True
                if all(over):
                    return
                if mode == "max_size_cycle":
                    iterators[which] = begin[which]()
                    batch = next(iterators[which], None)
            batches.append(None if batch is _END else batch)
        yield batches


def combined_length(lengths: list[int | None], mode: str) -> int | None:
    """Return the number of batches that loaders of these lengths yield together; None if unknown."""
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return None
    if mode == "sequential":
        return sum(known)
    return min(known) if mode == "min_size" else max(known)


def leaves_of(iterables: Any) -> list[Any]:
    """Return the loaders in nested lists, tuples and dicts. A nested list without loaders is one loader."""
    if not isinstance(iterables, (Mapping, list, tuple)):
        return [iterables]
    items: Iterable[Any] = iterables.values() if isinstance(iterables, Mapping) else iterables
    return [leaf for item in items for leaf in (leaves_of(item) if _is_collection(item) else [item])]


def filled(iterables: Any, batches: Iterator[Any]) -> Any:
    """Return the collection with each loader replaced by the next batch."""
    if not isinstance(iterables, (Mapping, list, tuple)):
        return next(batches)

    def of(item: Any) -> Any:
        return filled(item, batches) if _is_collection(item) else next(batches)

    if isinstance(iterables, Mapping):
        return {key: of(item) for key, item in iterables.items()}
    items = [of(item) for item in iterables]
    return items if isinstance(iterables, list) else tuple(items)


def as_combined(loader: Any, default: Mode) -> CombinedLoader | None:
    """Return several loaders as a `CombinedLoader`; None for a single loader.

    Args:
        loader: a loader, a collection of loaders, or a CombinedLoader, also one of another library.
        default: the mode for a collection.
    """
    if hasattr(loader, "mode") and hasattr(loader, "iterables"):
        return CombinedLoader(loader.iterables, loader.mode)
    return CombinedLoader(loader, default) if _is_collection(loader) else None


def _is_collection(value: Any) -> bool:
    if isinstance(value, Mapping):
        values = value.values()
        return holds_loaders(values) or all(isinstance(each, (list, tuple)) for each in values)
    return isinstance(value, (list, tuple)) and holds_loaders(value)


def sample_of_any(loader: Any) -> Callable[[], Any] | None:
    """Return a function that returns a sample batch of one loader or several; None if it can't. See `sample_of`."""
    combined = as_combined(loader, "max_size_cycle")
    if combined is None:
        return sample_of(loader)
    samples = [sample_of(each) for each in combined.flattened]
    if not samples or None in samples:
        return None
    if combined.mode == "sequential":
        return samples[0]
    return lambda: filled(combined.iterables, (sample() for sample in samples if sample is not None))
