"""Finds the files that are mapped into this process's memory, so that workers can map them instead of a copy."""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_right
from dataclasses import dataclass

from stratagem_launch.transfer.shared import memory_file

PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class _Area:
    """A line of /proc/self/maps."""

    begin: int
    end: int
    mode: str
    """Mode such as "rw-p"; the last letter is s if writes are shared."""
    offset: int
    path: str
    """Path of a file that can be opened; empty if no file is mapped."""


class MappedMemory:
    """The maps of this process at one moment; none on systems without /proc."""

    def __init__(self) -> None:
        self._areas: list[_Area] = []
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    span, mode, offset, _, inode, *path = line.rstrip("\n").split(maxsplit=5)
                    begin, _, end = span.partition("-")
                    file_path = path[0] if path else ""
                    # Only for files in memory: the inodes of other file systems may have the same number.
                    if file_path.startswith("/memfd:"):
                        file_path = memory_file(int(inode)) or ""
                    self._areas.append(_Area(int(begin, 16), int(end, 16), mode, int(offset, 16), file_path))
        except OSError:
            pass
        self._begins = [area.begin for area in self._areas]

    def file_of(self, address: int, size_bytes: int) -> tuple[str, int] | None:
        """Return the file that is mapped to a range of memory, and the offset of the range in the file.

        None if no file is mapped there, if the file was deleted, and if a private map has been written to.
        """
        area = self._area_of(address)
        if area is None or address + size_bytes > area.end or not area.path.startswith("/"):
            return None
        offset = area.offset + address - area.begin
        try:
            if os.stat(area.path).st_size < offset + size_bytes:
                return None
        except OSError:  # a deleted file: the kernel appends " (deleted)" to its path
            return None
        if area.mode[3] == "p" and "w" in area.mode and _is_changed(address, size_bytes):
            return None
        return area.path, offset

    def _area_of(self, address: int) -> _Area | None:
        index = bisect_right(self._begins, address) - 1
        return self._areas[index] if index >= 0 and address < self._areas[index].end else None


def _is_changed(address: int, size_bytes: int) -> bool:
    """Return whether a page of a private map of a file has become this process's own.

    Linux, Documentation/admin-guide/mm/pagemap.rst: bit 63: present, bit 62: swapped out, bit 61: page of a file.
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
    """Return the bytes at an address. The caller must keep their owner alive."""
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")
