"""Split the arguments of a step along dim 0 into chunks, and merge the outputs of the chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from stratagem import LossSum
from stratagem.errors import DataError
from stratagem.sdk.loops import loss_of, weight_of
from stratagem.sdk.tensors import leaves_in, opened


def split(value: Any, count: int) -> list[tuple[Any, int]]:
    """Return the chunks of `value`, each with its number of samples.

    Args:
        value: nested tuples, lists, mappings and dataclasses. Tensors are split along dim 0. Lists without tensors
            and tuples of strings are split too if they have one entry per sample. Every chunk gets scalars and all
            other values whole.
        count: number of chunks; a batch of fewer samples has one chunk per sample.

    Returns:
        Chunks whose sizes differ by one sample at most, larger ones first.

    Raises:
        DataError: there is no tensor to split, or tensors have different lengths.
    """
    lengths = sorted({tensor.shape[0] for tensor in _tensors(value) if tensor.dim() > 0})
    if len(lengths) != 1:
        found = f"tensors with {', '.join(map(str, lengths))} entries" if lengths else "no tensor"
        raise DataError(
            f"a batch is split into {count} parts along dim 0 of its tensors, but this one has {found}: "
            "give all tensors of a batch an entry per sample, or don't have it split"
        )
    total = lengths[0]
    count = max(1, min(count, total))
    small, larger = divmod(total, count)
    parts, start = [], 0
    for index in range(count):
        stop = start + small + (index < larger)
        parts.append((_cut(value, slice(start, stop), total), stop - start))
        start = stop
    return parts


def merge(outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return one output for a batch, merged from the outputs of its chunks.

    Floating-point scalars are averaged, weighted by samples. Other tensors are concatenated along dim 0. Mappings and
    tuples are merged entry by entry. Lists with one entry per sample are joined. Any other equal values are returned
    once, unequal ones as a list. Chunks without an output (None) are ignored. A loss with a weight is summed over
    chunks, and so is its weight.

    Args:
        outputs: one per chunk, at least one.
        sizes: number of samples in each chunk.
    """
    kept = [(output, size) for output, size in zip(outputs, sizes) if output is not None]
    if not kept:
        return None
    outputs, sizes = [output for output, _ in kept], [size for _, size in kept]
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return _merge_tensors([output.to(first.device) for output in outputs], sizes)
    if weight_of(first) is not None:
        return _summed(outputs, sizes)
    if isinstance(first, Mapping):
        return {key: merge([output[key] for output in outputs], sizes) for key in first}
    if isinstance(first, list) and [len(output) for output in outputs] == list(sizes):
        return [item for output in outputs for item in output]
    if isinstance(first, (list, tuple)):
        items = [merge(entries, sizes) for entries in zip(*outputs)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if isinstance(first, float):
        return sum(output * size for output, size in zip(outputs, sizes)) / sum(sizes)
    return first if all(output == first for output in outputs) else list(outputs)


def _summed(outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    losses = [loss for output in outputs if (loss := loss_of(output)) is not None]
    weights = [weight_of(output) for output in outputs]
    if len(losses) < len(outputs) or None in weights:
        raise DataError(
            "some parts of a batch have a loss with a weight, and others don't: give each its weight"
        )
    loss = torch.stack([each.to(losses[0].device) for each in losses]).sum()
    weight: Any = sum(each.to(loss.device) if isinstance(each, torch.Tensor) else each for each in weights)
    if isinstance(outputs[0], LossSum):
        return LossSum(loss, weight)
    others = [{k: v for k, v in output.items() if k not in ("loss", "weight")} for output in outputs]
    return {**merge(others, sizes), "loss": loss, "weight": weight}


def _merge_tensors(outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    if outputs[0].dim() > 0:
        return torch.cat(list(outputs))
    stacked = torch.stack(list(outputs))
    if not stacked.is_floating_point():
        return stacked
    weights = torch.tensor(sizes, dtype=stacked.dtype, device=stacked.device)
    return (stacked * (weights / weights.sum())).sum()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves_in(value) if isinstance(leaf, torch.Tensor))


def _is_per_sample(value: Sequence[Any]) -> bool:
    # A short tuple of numbers may be a shape.
    return (isinstance(value, list) or isinstance(value[0], str)) and next(_tensors(value), None) is None


def _cut(value: Any, where: slice, total: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[where] if value.dim() > 0 else value
    if isinstance(value, (list, tuple)) and len(value) == total and _is_per_sample(value):
        return value[where]
    container = opened(value)
    return (
        value
        if container is None
        else container.filled([_cut(item, where, total) for item in container.items])
    )
