"""How two checkpoints differ, of whatever formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from stratagem_convert.formats import own
from stratagem_convert.formats.converting import format_of, read_weights
from stratagem_convert.formats.stored import WeightsReader, block_rows


@dataclass(frozen=True)
class TensorDifference:
    """What is different about a tensor that both have.

    Attributes:
        name: of the tensor.
        shapes: of the first and the second, where they aren't equal; None where they are.
        dtypes: the same.
        largest: the largest absolute difference, NaN and infinities that only one has as infinite; None where
            shapes differ.
        count: elements that differ; None where shapes differ.
    """

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None
    dtypes: tuple[torch.dtype, torch.dtype] | None
    largest: float | None
    count: int | None


@dataclass(frozen=True)
class Difference:
    """How two checkpoints differ.

    Attributes:
        first_only: names that the second lacks.
        second_only: names that the first lacks.
        tensors: those that both have and that aren't equal, those of the largest difference first.
        equal: how many are equal to the bit.
    """

    first_only: list[str]
    second_only: list[str]
    tensors: list[TensorDifference]
    equal: int


def compare(first: str, second: str, rename: Callable[[str], str] = str) -> Difference:
    """Compare all tensors of two of our own checkpoints, or the model's where one is of another format.

    Args:
        first: path.
        second: path.
        rename: gives the names of the first those of the second.

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
