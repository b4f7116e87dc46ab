"""What this process's memory is a map of, and how it becomes a private map of a file that has the same content."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from bisect import bisect_right
from dataclasses import dataclass

PAGE = mmap.PAGESIZE
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Private maps of much data shall not count as memory before they are written to."""
_MAP_FIXED = 0x10
_HEADER_BYTES, _FLAGS, _IS_MMAPPED = 16, 0x7, 0x2
NAME = "stratagem"
"""Of files in memory."""
_WRITTEN = f"/memfd:{NAME} (deleted)"


@dataclass(frozen=True)
class _Area:
    """A line of /proc/self/maps."""

    begin: int
    end: int
    mode: str
    """As "rw-p"; the last letter is s where writes are shared."""
    offset: int
    path: str
    """Empty where it is a map of no file."""


@dataclass(frozen=True)
class Block:
    """Whole pages that belong to one tensor or array."""

    address: int
    size_bytes: int
    is_written: bool
    """Whether it is a map of a file that an earlier launch has written."""


class MappedMemory:
    """The maps of this process at one moment; none on systems without /proc."""

    def __init__(self) -> None:
        self._areas: list[_Area] = []
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    span, mode, offset, _, _, *path = line.rstrip("\n").split(maxsplit=5)
                    begin, _, end = span.partition("-")
                    self._areas.append(
                        _Area(int(begin, 16), int(end, 16), mode, int(offset, 16), path[0] if path else "")
                    )
        except OSError:
            pass
        self._begins = [area.begin for area in self._areas]

    def file_of(self, address: int, size_bytes: int) -> tuple[str, int] | None:
        """Return the file that a range is an unchanged map of, and where in the file it begins.

        None where it is none, where the file is gone, and where a private map has been written to.
        """
        area = self._area_of(address)
        if area is None or address + size_bytes > area.end or not area.path.startswith("/"):
            return None
        offset = area.offset + address - area.begin
        try:
            if os.stat(area.path).st_size < offset + size_bytes:
                return None
        except OSError:  # deleted, which the kernel writes behind the path
            return None
        if area.mode[3] == "p" and "w" in area.mode and _is_changed(address, size_bytes):
            return None
        return area.path, offset

    def own_block(self, address: int, size_bytes: int) -> Block | None:
        """Return the block that glibc has mapped for what begins at an address, and will unmap as a whole.

        None where at least half of the block is something else.

        Told by the block's header (malloc/malloc.c, `munmap_chunk`). None for other blocks, too: they are
        used again by the allocator, and other allocators may presume that what they dropped is zero.
        """
        header = address - _HEADER_BYTES
        end, is_written = header, False
        while end < address + size_bytes:  # huge pages are areas of their own
            area = self._area_of(end)
            if area is None or area.mode != "rw-p" or area.path not in ("", _WRITTEN):
                return None
            end, is_written = area.end, is_written or area.path == _WRITTEN
        if address % _HEADER_BYTES or ctypes.sizeof(ctypes.c_size_t) != 8:
            return None
        before, size = (ctypes.c_size_t * 2).from_address(header)
        block = Block(header - before, before + (size & ~_FLAGS), is_written)
        if not size & _IS_MMAPPED or block.address % PAGE or block.size_bytes % PAGE:
            return None
        if not address + size_bytes <= block.address + block.size_bytes <= end:
            return None
        is_filled = block.size_bytes <= 2 * size_bytes
        return block if is_filled and self._area_of(block.address) is not None else None

    def _area_of(self, address: int) -> _Area | None:
        index = bisect_right(self._begins, address) - 1
        return self._areas[index] if index >= 0 and address < self._areas[index].end else None


def _is_changed(address: int, size_bytes: int) -> bool:
    """Tell whether a page of a private map of a file has become this process's own.

    Linux, Documentation/admin-guide/mm/pagemap.rst: bit 63 present, 62 swapped out, 61 of a file.
    """
    import numpy as np

    first, last = address // PAGE, (address + size_bytes - 1) // PAGE
    try:
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(first * 8)
            entries = np.frombuffer(file.read((last - first + 1) * 8), np.uint64)
    except OSError:
        return True
    kinds = entries >> np.uint64(61)
    return bool(((kinds == 4) | (kinds & np.uint64(2) != 0)).any())


def memory_at(address: int, size_bytes: int) -> memoryview:
    """Return the bytes at an address; the caller keeps what they belong to."""
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")


def become_map(address: int, size_bytes: int, file: int, offset: int) -> None:
    """Put a private map of a file in the place of memory of this process that has the same content.

    The kernel does this at once, so that whoever reads meanwhile notices nothing. What this process writes
    there afterwards stays its own.

    Args:
        address: at the begin of a page.
        size_bytes: whole pages.
        file: descriptor.
        offset: in the file, at the begin of a page.

    Raises:
        OSError: the kernel refuses, and all is as before.
    """
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | NORESERVE | _MAP_FIXED
    got = function(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, offset)
    if got != address:
        raise OSError(ctypes.get_errno(), "mmap")
