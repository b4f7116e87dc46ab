"""Reads the memory of another process through a descriptor from it. Doesn't import torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

from stratagem_checkpoint.checksums import CHECKED_BYTES


class _Place(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("address", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t))


class MemoryReader:
    """Reads a block at a time into its own buffer, which stays in the processor's cache.

    Args:
        descriptor: of /proc/PID/mem or of a file; closed by `close`.
        offset: of the memory's first byte, in the descriptor.
        parent: id of the parent process, if the memory is the parent's; None if it is another's or a file's.
    """

    def __init__(self, descriptor: int, offset: int, parent: int | None) -> None:
        self._descriptor, self._offset, self._parent = descriptor, offset, parent
        self._block = (ctypes.c_char * CHECKED_BYTES)()
        self._view = memoryview(self._block).cast("B")
        self._readv = None if parent is None else _process_vm_readv()

    def parts(self, start: int, size_bytes: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` on, one block at a time. Use each block before you request the next one.

        Raises:
            EOFError: the process that owns the memory is gone.
        """
        end = start + size_bytes
        while start < end:
            count = self._read(self._offset + start, min(CHECKED_BYTES, end - start))
            # If the parent is gone, another process may have its id.
            if not count or self._parent not in (None, os.getppid()):
                raise EOFError("the process whose memory is read is gone")
            yield self._view[:count]
            start += count

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def _read(self, start: int, size_bytes: int) -> int:
        if self._readv is not None:
            own, other = _Place(ctypes.addressof(self._block), size_bytes), _Place(start, size_bytes)
            count: int = self._readv(self._parent, ctypes.byref(own), 1, ctypes.byref(other), 1, 0)
            if count > 0:
                return count
            self._readv = None  # Not every system lets a process read the one that started it.
        return os.preadv(self._descriptor, [self._view[:size_bytes]], start)


def _process_vm_readv() -> Any:
    """Return Linux's process_vm_readv, or None. Python lacks it; it is three times as fast as /proc/PID/mem."""
    try:
        readv = ctypes.CDLL(None).process_vm_readv
    except (AttributeError, OSError, TypeError):
        return None
    readv.restype = ctypes.c_ssize_t
    place, count = ctypes.POINTER(_Place), ctypes.c_ulong
    readv.argtypes = (ctypes.c_int, place, count, place, count, count)
    return readv
