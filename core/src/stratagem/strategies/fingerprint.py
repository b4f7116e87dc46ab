"""Fingerprints of tensors: equal if all bits are, and otherwise different unless someone contrives a collision."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any
from zlib import crc32

import torch

WIDTH = 1021
"""Number of sums. Each element goes into the sum of its position modulo this, so that the order of values counts.

It is a prime. With a power of two, swapping two rows of a matrix with that many columns would change no sum.
"""
SMALL = 2**16
"""Tensors of up to this many elements are concatenated before they are summed, which takes fewer operations."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return a fingerprint of the bits of `tensors`, an int64 scalar on `device`. Doesn't wait for the device.

    Args:
        tensors: of any shape and dtype, but no DTensors; their order counts.
        device: of the result.
    """
    total = torch.zeros((), dtype=torch.int64, device=device)
    for index, flat in enumerate(_joined(tensors)):
        total += (_summed(flat) * (2 * index + 1)).to(device)
    return total


def number_of(value: Any) -> int:
    """Return a checksum of a JSON value. It is the same in every process."""
    return crc32(repr(value).encode())


def _summed(flat: torch.Tensor) -> torch.Tensor:
    rows = flat.numel() // WIDTH
    sums = flat[: rows * WIDTH].view(rows, WIDTH).sum(0, dtype=torch.int64)
    rest = flat[rows * WIDTH :]
    sums[: rest.numel()] += rest
    return (sums * _weights(flat.device)).sum()


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return a weight for each sum, the same in every process.

    Weights are odd: multiplying by an odd number modulo 2^64 is invertible, so that no bit of a sum is lost.
    """
    numbers = Random(0)
    return torch.tensor([numbers.getrandbits(62) | 1 for _ in range(WIDTH)], device=device)


def _joined(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    """Yield the bits of `tensors` as flat integers. Small tensors of one dtype and device are concatenated."""
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
