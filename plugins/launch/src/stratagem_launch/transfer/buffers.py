"""Sends the memory that a pickled task refers to: it is copied once, into files that all workers map.

Workers map the files privately: they share a page until one of them writes to it and gets its own copy. So no process
sees another's writes, as if each had received a copy of everything.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any

from stratagem.errors import UsageError
from stratagem_launch.transfer.data_file import DataFile, has_memory_for
from stratagem_launch.transfer.mapped_memory import MappedMemory
from stratagem_launch.transfer.shared import NORESERVE

SMALL_BYTES = 16 << 10
"""Smaller buffers are sent within the pickle."""


@dataclass(frozen=True)
class Layout:
    """Where a worker finds the buffers that a pickle left out; picklable."""

    files: list[tuple[str, int, int]]
    """Path, offset, size in bytes."""
    buffers: list[tuple[int, int, int]]
    """Index of a file, offset from the file's offset, size in bytes; in the order in which the pickle needs them."""

    def open(self) -> list[memoryview]:
        """Map all files, and return the buffers. Only this process sees what it writes to them.

        Raises:
            UsageError: a file can't be opened here.
        """
        mapped = [_mapped(*file) for file in self.files]
        return [mapped[index][offset : offset + size] for index, offset, size in self.buffers]


def _mapped(path: str, offset: int, size_bytes: int) -> memoryview:
    before = offset % mmap.ALLOCATIONGRANULARITY
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            content = mmap.mmap(
                descriptor,
                size_bytes + before,
                flags=mmap.MAP_PRIVATE | NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
                offset=offset - before,
            )
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}, which holds data for the workers, can't be mapped here: {error}"
        ) from error
    return memoryview(content)[before:]


@dataclass(eq=False)
class _Region:
    """A range of this process's memory, covered by buffers that overlap or touch."""

    address: int
    end: int
    file: tuple[str, int] | None
    """If the memory is a map of a file already: the file, and the address that its beginning would have."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.address

    def holds(self, addresses: Sequence[int]) -> bool:
        """Return whether one of some sorted addresses is in it."""
        index = bisect_left(addresses, self.address)
        return index < len(addresses) and addresses[index] < self.end


class SentBuffers:
    """Takes the buffers of a pickle, as its `buffer_callback`, and writes them to files for workers.

    Close it when no more workers will be started.
    """

    def __init__(self) -> None:
        self.copied: set[int] = set()
        """Addresses of tensors that workers copy into their own memory. Their file is on the disk, not in memory."""
        self._found: list[tuple[int, int, Any]] = []
        """Address, size in bytes, and an object that keeps the memory alive."""
        self._written: list[DataFile] = []

    def __call__(self, buffer: PickleBuffer) -> bool:
        """Return whether a buffer is sent within the pickle. Remember it otherwise."""
        content = buffer.raw()
        if content.nbytes < SMALL_BYTES:
            return True
        import numpy as np

        address = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
        self._found.append((address, content.nbytes, content))
        return False

    def write(self, folder: str) -> Layout:
        """Write all buffers except those that are maps of files already. Return where workers find all of them.

        This process's own memory isn't moved, so its threads may continue to write there.

        Args:
            folder: of the launch.

        Raises:
            UsageError: neither memory nor the folder has room.
        """
        if not self._found:
            return Layout([], [])
        memory = MappedMemory()
        regions = self._regions(memory)
        to_copy = sorted(self.copied)
        mapped: list[tuple[_Region, tuple[str, int]]] = []
        copied: list[_Region] = []
        shared: list[_Region] = []
        for region in dict.fromkeys(regions):
            if region.file is not None:
                mapped.append((region, region.file))
            else:
                (copied if region.holds(to_copy) else shared).append(region)
        fits = has_memory_for(sum(region.size_bytes for region in shared), folder)
        files = [(path, region.address - begin, region.size_bytes) for region, (path, begin) in mapped]
        starts = {region: (index, 0) for index, (region, _) in enumerate(mapped)}
        for group, in_memory in ((shared, fits), (copied, False)):
            if group:
                target = DataFile(folder, f"data.{len(files)}", in_memory)
                self._written.append(target)
                for region in group:
                    starts[region] = (len(files), target.append(region.address, region.size_bytes))
                files.append(target.seal())
        buffers = []
        for (address, size_bytes, _), region in zip(self._found, regions):
            index, begin = starts[region]
            buffers.append((index, begin + address - region.address, size_bytes))
        self._found.clear()
        return Layout(files, buffers)

    def _regions(self, memory: MappedMemory) -> list[_Region]:
        """Return the region of each buffer. Buffers in maps of one file share a region, which also covers gaps."""
        regions: dict[int, _Region] = {}
        last: dict[tuple[str, int] | None, _Region] = {}
        for index in sorted(range(len(self._found)), key=lambda index: self._found[index][0]):
            address, size_bytes, _ = self._found[index]
            found = memory.file_of(address, size_bytes)
            file = None if found is None else (found[0], address - found[1])
            region = last.get(file)
            if region is None or (file is None and address > region.end):
                region = last[file] = _Region(address, address, file)
            region.end = max(region.end, address + size_bytes)
            regions[index] = region
        return [regions[index] for index in range(len(self._found))]

    def close(self) -> None:
        """Close the written files. Their memory is freed when the workers that have opened them have ended."""
        for file in self._written:
            file.close()
        self._written.clear()
