"""Refuses objects that aren't one loader, and loaders without a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, Dataset

from stratagem.errors import DataError, short

_LOOKED_AT = 16
_ONE = "pass one DataLoader at a time, or one iterable whose batches are made from all of them; Trainer takes several"


def refuse_several(loader: Any) -> None:
    """Refuse a container of loaders, which would be iterated as if the loaders were batches.

    A list of batches is one loader, and is accepted.

    Raises:
        DataError: `loader` is a list or tuple of loaders, an object that combines some, any mapping, or not iterable.
    """
    kind = type(loader).__name__
    if isinstance(loader, (str, bytes)):
        raise DataError(f"{short(loader)} isn't a loader: pass a DataLoader, or an iterable of batches")
    if isinstance(loader, Mapping):
        if holds_loaders(loader.values()):
            raise DataError(f"a {kind} of loaders was given where one loader belongs: {_ONE}")
        raise DataError(
            f"a {kind} isn't a loader, since its keys would be read as batches: pass a list of batches"
        )
    if isinstance(loader, (list, tuple)) and holds_loaders(loader):
        raise DataError(f"a {kind} of {len(loader)} loaders was given where one loader belongs: {_ONE}")
    # Lightning's CombinedLoader, whose batches are (batch, index, index of the loader).
    if hasattr(loader, "mode") and (hasattr(loader, "iterables") or hasattr(loader, "loaders")):
        raise DataError(f"a {kind} was given where one loader belongs: {_ONE}")
    if not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise DataError(f"an object of {kind} isn't a loader: pass a DataLoader, or an iterable of batches")


def can_be_read_once(loader: Any) -> bool:
    """Whether `loader` is an iterator, which can't be iterated a second time."""
    return hasattr(loader, "__next__")


def no_batch(where: str, description: str, loader: Any) -> DataError:
    """Return the error for data that ended before the first batch.

    Args:
        where: what has no batch, as the beginning of a sentence, such as "epoch 0".
        description: one clause that says what is read.
        loader: the loader that was iterated.
    """
    if can_be_read_once(loader):
        what = (
            f"a {type(loader).__name__} can be read only once: pass an iterable that begins from its first batch "
            "whenever it is iterated, such as a list or a DataLoader"
        )
    else:
        what = "give each rank at least one batch"
    return DataError(f"{where} has no batch ({description}): {what}")


def holds_loaders(values: Iterable[Any]) -> bool:
    """Whether there are loaders among `values`, or in lists among them, rather than batches."""
    return any(
        _is_loader(value)
        or (isinstance(value, (list, tuple)) and any(map(_is_loader, islice(value, _LOOKED_AT))))
        for value in islice(values, _LOOKED_AT)
    )


def _is_loader(value: Any) -> bool:
    return isinstance(value, (DataLoader, Dataset)) or any(
        hasattr(value, name) for name in ("dataset", "batch_sampler", "__next__")
    )
