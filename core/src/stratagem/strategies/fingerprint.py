"""Numbers that are equal exactly where values are, bit by bit, as far as anything but malice can tell."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any
from zlib import crc32

import torch

WIDTH = 1021
"""Sums are kept apart by position modulo this, so that values in other places count as other values.

A prime: with a power of two, exchanged rows of a matrix as wide as it would leave all sums as they are.
"""
SMALL = 2**16
"""Elements up to which tensors are put together before they are summed: fewer operations."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return a number of the bits of `tensors`, an int64 scalar on `device`. Doesn't wait for the device.

    Args:
        tensors: plain ones, of any shape and dtype; their order counts.
        device: where the result is to be.
    """
    total = torch.zeros((), dtype=torch.int64, device=device)
    for index, flat in enumerate(_joined(tensors)):
        total += (_summed(flat) * (2 * index + 1)).to(device)
    return total


def number_of(value: Any) -> int:
    """Return a number of a value that JSON can hold, the same in every process."""
    return crc32(repr(value).encode())


def _summed(flat: torch.Tensor) -> torch.Tensor:
    rows = flat.numel() // WIDTH
    sums = flat[: rows * WIDTH].view(rows, WIDTH).sum(0, dtype=torch.int64)
    rest = flat[rows * WIDTH :]
    sums[: rest.numel()] += rest
    return (sums * _weights(flat.device)).sum()


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """A number for each place, the same in every process; odd, so that no bit of a sum is lost in the product."""
    numbers = Random(0)
    return torch.tensor([numbers.getrandbits(62) | 1 for _ in range(WIDTH)], device=device)


def _joined(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    """Yield the bits of `tensors` as flat integers: small ones of a kind together, others separately."""
    small: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        bits = _bits(tensor)
        if bits.numel() > SMALL:
            yield bits
        elif bits.numel():
            small.setdefault((bits.dtype, bits.device), []).append(bits)
    for group in small.values():
        yield torch.cat(group) if len(group) > 1 else group[0]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()])
