"""Copies many tensors into memory of this process, with threads that synchronize only once.

Torch's own threads synchronize after each tensor, by spinning. If other work uses the processors, that takes longer
than the copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

_CHUNK_BYTES = 16 * 2**20
_WAITING_BYTES = 256 * 2**20
_THREADS = 4

_Copy = tuple[int, int, int]


class MemoryCopies:
    """Collects copies; runs them once there are enough, and in `finish`. Tensors must not change before."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._copies: list[_Copy] = []
        self._waiting_bytes = 0

    def add(self, address: int, tensor: torch.Tensor) -> None:
        """Copy a contiguous tensor on the CPU, whose bit for conjugates or negatives isn't set, to `address`."""
        size_bytes, source = tensor.nbytes, tensor.data_ptr()
        self._tensors.append(tensor)
        self._copies += [
            (address + start, source + start, min(_CHUNK_BYTES, size_bytes - start))
            for start in range(0, size_bytes, _CHUNK_BYTES)
        ]
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _WAITING_BYTES:
            self.finish()

    def finish(self) -> None:
        """Run all waiting copies."""
        threads = min(_THREADS, torch.get_num_threads(), len(self._copies))
        if threads <= 1:
            _copy(self._copies)
        else:
            waiting = iter(self._copies)
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(_copy, [waiting] * threads))
        self._tensors, self._copies, self._waiting_bytes = [], [], 0


def _copy(copies: Iterable[_Copy]) -> None:
    for target, source, size_bytes in copies:
        ctypes.memmove(target, source, size_bytes)  # without the interpreter's lock
