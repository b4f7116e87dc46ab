"""Merge the predictions of several ranks in the order of the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stratagem_sharding.batch_size import batch_size_of

if TYPE_CHECKING:
    from stratagem_trainer.data.evaluation import EvalLoader

Join = Callable[[Sequence[Any]], Any]
_NOTHING = object()


class _CannotSplitError(Exception):
    pass


def in_order(data: EvalLoader, parts: list[list[Any]], *, warns: bool) -> list[Any]:
    """Return all ranks' predictions in the order of the data.

    Args:
        data: the loader whose batches were predicted.
        parts: by rank, the predictions of its batches that counted.
        warns: whether this process warns if they can't be put in order; only one process of the run should.

    Returns:
        The predictions as one rank with this loader would have made them, as `merge_predictions` describes. For a
        loader that isn't shared among ranks: rank 0's predictions, then rank 1's, and so on.
    """
    sizes = data.sizes(parts)
    if sizes is None:
        return list(chain.from_iterable(parts))
    return merge_predictions(parts, sizes, data.batch_size, warnings.warn if warns else lambda _: None)


def merge_predictions(
    parts: list[list[Any]],
    sizes: list[list[int]] | None = None,
    batch_size: int | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> list[Any]:
    """Return what one rank with the same loader would have predicted, batch by batch.

    Expects samples dealt out in turn, as `EvalData` does with a default sampler: sample i was predicted by
    rank i modulo the number of ranks. Predictions are split into samples, brought into order, and
    joined to batches again.

    Tensors and arrays are split along their first dim, mappings and tuples by their values, lists as
    long as the batch by their items. What can't be split like this (one number per batch, batches of
    different shapes beyond the first dim) is kept per batch, with a warning: all ranks' first batches
    in the order of ranks, then all second ones.

    Args:
        parts: by rank, the predictions of its batches.
        sizes: by rank, the number of samples in these batches; found from the predictions by
            `batch_size_of` when None.
        batch_size: samples per batch of the result; the size of rank 0's first batch when None, which is
            less than the loader's where there are few samples.
        warn: called with the warning; every rank that merges has the same to say.
    """
    own, *others = parts
    if not others:
        return own
    flat = list(chain.from_iterable(parts))
    found = chain.from_iterable(sizes) if sizes else map(batch_size_of, flat)
    counts = [count for count in found if count is not None]
    try:
        if not counts or len(counts) != len(flat):
            raise _CannotSplitError
        rows, join = _split(flat, counts)
    except _CannotSplitError:
        if any(prediction is not None for prediction in flat):
            warn(
                "predictions can't be split into samples, so that they are in the order of batches and "
                "ranks, not of samples: return tensors, or dicts and tuples of them, with one row per sample"
            )
        return _in_turn(parts)
    by_rank, begin, position = [], 0, 0
    for part in parts:
        count = sum(counts[position : position + len(part)])
        by_rank.append(rows[begin : begin + count])
        begin, position = begin + count, position + len(part)
    ordered = _in_turn(by_rank)
    size = batch_size or max(counts[0], 1)
    return [join(ordered[first : first + size]) for first in range(0, len(ordered), size)]


def _in_turn(parts: Sequence[Sequence[Any]]) -> list[Any]:
    rounds = zip_longest(*parts, fillvalue=_NOTHING)
    return [item for item in chain.from_iterable(rounds) if item is not _NOTHING]


def _split(values: list[Any], counts: list[int]) -> tuple[list[Any], Join]:
    """Return the rows of all `values` one after the other, and what makes a value of rows again."""
    first: Any = values[0]
    kind: Any = type(first)
    if all(value is None for value in values):
        return [None] * sum(counts), lambda rows: None
    if isinstance(first, torch.Tensor):
        return _stacked(values, counts, torch.Tensor), torch.stack  # type: ignore[return-value]  # a row is a tensor here
    if isinstance(first, np.ndarray):
        return _stacked(values, counts, np.ndarray), np.stack
    if isinstance(first, list) and _all_as_long(values, list, counts):
        return list(chain.from_iterable(values)), list
    if isinstance(first, Mapping) and first:
        keys = list(first)
        if not all(isinstance(value, Mapping) and value.keys() == first.keys() for value in values):
            raise _CannotSplitError
        rows, join = _columns([[value[key] for value in values] for key in keys], counts)
        return rows, lambda chosen: kind(dict(zip(keys, join(chosen))))
    if isinstance(first, (list, tuple)) and first:
        is_named = hasattr(first, "_fields")
        if not _all_as_long(values, kind, [len(first)] * len(values)):
            return _items_of_tuples(values, counts)
        try:
            rows, join = _columns([list(column) for column in zip(*values)], counts)
        except _CannotSplitError:
            return _items_of_tuples(values, counts)
        return rows, lambda chosen: kind(*join(chosen)) if is_named else kind(join(chosen))
    raise _CannotSplitError


def _stacked(values: list[Any], counts: list[int], kind: type) -> list[Any]:
    for value, count in zip(values, counts):
        if not isinstance(value, kind) or value.shape != (count, *values[0].shape[1:]):  # type: ignore[attr-defined]  # tensors and arrays have it
            raise _CannotSplitError
    return list(chain.from_iterable(values))


def _items_of_tuples(values: list[Any], counts: list[int]) -> tuple[list[Any], Join]:
    if type(values[0]) is not tuple or not _all_as_long(values, tuple, counts):
        raise _CannotSplitError
    return list(chain.from_iterable(values)), tuple


def _columns(columns: list[list[Any]], counts: list[int]) -> tuple[list[Any], Callable[[Any], list[Any]]]:
    split = [_split(column, counts) for column in columns]
    rows = list(zip(*(rows for rows, _ in split)))
    return rows, lambda chosen: [join(list(column)) for (_, join), column in zip(split, zip(*chosen))]


def _all_as_long(values: list[Any], kind: type, counts: list[int]) -> bool:
    return all(isinstance(value, kind) and len(value) == count for value, count in zip(values, counts))  # type: ignore[arg-type]  # kind has a length
