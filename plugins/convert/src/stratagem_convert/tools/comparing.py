"""Compare two checkpoints of any formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from stratagem_convert.formats import own
from stratagem_convert.formats.converting import format_of, read_weights
from stratagem_convert.formats.stored import WeightsReader, block_rows


@dataclass(frozen=True)
class TensorDifference:
    """The difference of a tensor that both checkpoints have.

    Attributes:
        name: name of the tensor.
        shapes: of the first and the second; None if they are equal.
        dtypes: of the first and the second; None if they are equal.
        largest: the largest absolute difference, infinite for a NaN or infinity that only one has; None if shapes
            differ.
        count: number of elements that differ; None if shapes differ.
    """

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None
    dtypes: tuple[torch.dtype, torch.dtype] | None
    largest: float | None
    count: int | None


@dataclass(frozen=True)
class Difference:
    """The differences between two checkpoints.

    Attributes:
        first_only: names that the second lacks.
        second_only: names that the first lacks.
        tensors: tensors that both have and that differ, in the order of their differences.
        equal: number of tensors that are bitwise equal.
    """

    first_only: list[str]
    second_only: list[str]
    tensors: list[TensorDifference]
    equal: int


def compare(first: str, second: str, rename: Callable[[str], str] = str) -> Difference:
    """Compare all tensors of two of our own checkpoints; if one has another format, only those of the model.

    Args:
        first: path of the first.
        second: path of the second.
        rename: returns the name in the second for a name in the first.

    Raises:
        CheckpointError: one can't be read.
    """
    if format_of(first) == format_of(second) == "stratagem":
        one, other = own.read_directory(first, ""), own.read_directory(second, "")
    else:
        one, other = read_weights(first), read_weights(second)
    one = one.renamed(rename)
    names, others = one.names(), set(other.names())
    found: list[TensorDifference] = []
    equal = 0
    with WeightsReader(one) as one_reader, WeightsReader(other) as other_reader:
        for name in names:
            if name in others:
                difference = _difference(name, one_reader, other_reader)
                if difference is None:
                    equal += 1
                else:
                    found.append(difference)
    found.sort(key=lambda each: -(float("inf") if each.largest is None else each.largest))
    return Difference(
        [name for name in names if name not in others],
        [name for name in other.names() if name not in set(names)],
        found,
        equal,
    )


def _difference(name: str, first: WeightsReader, second: WeightsReader) -> TensorDifference | None:
    one, other = first.weights.stored(name), second.weights.stored(name)
    dtypes = None if one.dtype == other.dtype else (one.dtype, other.dtype)
    if one.shape != other.shape:
        return TensorDifference(name, (one.shape, other.shape), dtypes, None, None)
    largest, count = 0.0, 0
    for begin, end in block_rows([one, other]):
        a, b = first.rows(one, begin, end), second.rows(other, begin, end)
        if dtypes is None and torch.equal(_bits(a), _bits(b)):
            continue
        own_count, own_largest = _compare(a, b)
        count, largest = count + own_count, max(largest, own_largest)
    return TensorDifference(name, None, dtypes, largest, count) if count or dtypes else None


def _bits(block: torch.Tensor) -> torch.Tensor:
    return block.contiguous().reshape(-1).view(torch.uint8)


def _compare(a: torch.Tensor, b: torch.Tensor) -> tuple[int, float]:
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    same = (x == y) | (x.isnan() & y.isnan())
    if bool(same.all()):
        return 0, 0.0
    distance = (x - y).abs()[~same]
    return int((~same).sum()), float(distance.nan_to_num(nan=float("inf"), posinf=float("inf")).max())
