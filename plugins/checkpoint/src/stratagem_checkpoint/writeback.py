"""Bringing a file to the disk while it is being written, so that the fsync at its end has little to wait for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

WRITEBACK_BYTES = 8 * 2**20
"""How much is begun to be brought to the disk at a time."""

_SYNC_FILE_RANGE_WRITE = 2


class Writeback:
    """Tells the kernel to begin with what was written, which it would leave until the fsync (Linux).

    It promises nothing: what is written is on the disk after an fsync, as ever.

    Args:
        descriptor: of a file that is written from front to back.
        start: where in the file that begins.
    """

    def __init__(self, descriptor: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._begun = self._written = start
        self._sync_file_range = _sync_file_range()

    def wrote(self, size_bytes: int) -> None:
        """Take note of the next bytes of the file."""
        self._written += size_bytes
        waiting = self._written - self._begun
        if waiting >= WRITEBACK_BYTES and self._sync_file_range is not None:
            # What fails here fails at the fsync, too, and is told there.
            self._sync_file_range(self._descriptor, self._begun, waiting, _SYNC_FILE_RANGE_WRITE)
            self._begun = self._written


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's sync_file_range, which Python doesn't offer."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function  # type: ignore[no-any-return]
