"""Writes a large file sequentially, so that not all writeback is left to the fsync at its end (Linux).

Uses the C library: Python has no sync_file_range, and its posix_fallocate emulates a missing fallocate by writing.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

STEP_BYTES = 8 * 2**20
"""Bytes after which writeback is started; files up to that length are left alone."""
ROOM_BYTES = 64 * 2**20
"""Bytes to reserve at a time. Reserving saves a quarter of the processor time of each write."""

_SYNC_FILE_RANGE_WRITE = 2
_FALLOC_FL_KEEP_SIZE = 1


class GrowingFile:
    """Asks the kernel to start writeback early, and to reserve space for what follows.

    These are hints only: data is on the disk after an fsync, and a full disk fails at a write.

    Args:
        descriptor: of the file.
        start: offset at which writing begins.
        has_room: whether space for the whole file is already reserved.
    """

    def __init__(self, descriptor: int, start: int = 0, has_room: bool = False) -> None:
        self._descriptor = descriptor
        self._begun = self._written = start
        self._room = start
        self._asks_for_room = not has_room and _is_on_a_device(descriptor)
        self._libc = _libc()

    def wrote(self, size_bytes: int) -> None:
        """Record that the next bytes of the file were written."""
        self._written += size_bytes
        waiting = self._written - self._begun
        if waiting < STEP_BYTES or self._libc is None:
            return
        self._libc.sync_file_range(self._descriptor, self._begun, waiting, _SYNC_FILE_RANGE_WRITE)
        self._begun = self._written
        if self._asks_for_room and self._room < self._written + STEP_BYTES:
            begin = max(self._room, self._written)
            if self._libc.fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, begin, ROOM_BYTES) == 0:
                self._room = begin + ROOM_BYTES

    def finish(self) -> None:
        """Release reserved space behind the end of the file. Call it when all is written."""
        if self._room > self._written:
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)


def make_room(descriptor: int, size_bytes: int) -> None:
    """Set a new file's length, and reserve space for it if that helps."""
    libc = _libc()
    if libc is not None and _is_on_a_device(descriptor):
        libc.fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, 0, size_bytes)
    os.ftruncate(descriptor, size_bytes)


def _is_on_a_device(descriptor: int) -> bool:
    # Reserving is slower on tmpfs, and may need messages on network file systems.
    return os.major(os.fstat(descriptor).st_dev) != 0


def _libc() -> Any:
    """The C library, if it has both functions."""
    try:
        libc = ctypes.CDLL(None)
        length = ctypes.c_int64
        libc.sync_file_range.argtypes = (ctypes.c_int, length, length, ctypes.c_uint)
        libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, length, length)
    except (AttributeError, OSError, TypeError):
        return None
    return libc
