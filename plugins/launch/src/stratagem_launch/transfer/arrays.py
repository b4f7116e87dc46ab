"""Pickles NumPy's arrays: memory maps stay maps, and views that skip elements aren't copied first."""

from __future__ import annotations

import ctypes
from pickle import PickleBuffer
from typing import Any

import numpy as np

from stratagem_launch.transfer.buffers import SMALL_BYTES


def reduced(array: np.ndarray[Any, Any]) -> Any:
    """Return the result of a pickler's `reducer_override` for an array of any type."""
    if isinstance(array, np.memmap):
        mode = "c" if array.mode in ("r+", "w+") else array.mode
        return _memmap, (np.asarray(array), type(array), array.filename, array.offset, mode)
    if type(array) is not np.ndarray or array.dtype.hasobject or array.nbytes < SMALL_BYTES:
        return NotImplemented
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return NotImplemented  # NumPy pickles it without a copy
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    before = -sum(step for step in steps if step < 0)
    size_bytes = before + sum(step for step in steps if step > 0) + array.itemsize
    memory = (ctypes.c_char * size_bytes).from_address(array.ctypes.data - before)
    memory.array = array  # keeps the array alive as long as its memory
    form = (array.dtype, array.shape, array.strides, before, array.flags.writeable)
    return _strided, (PickleBuffer(memory), *form)


def _strided(
    memory: Any, dtype: Any, shape: Any, strides: Any, offset: int, is_writeable: bool
) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory, offset, strides)
    array.flags.writeable = is_writeable
    return array


def _memmap(array: np.ndarray[Any, Any], kind: type, filename: Any, offset: int, mode: str | None) -> Any:
    made: Any = array.view(kind)
    made.filename, made.offset, made.mode = filename, offset, mode
    return made
