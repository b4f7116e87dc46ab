"""Memory of this process that another process reads through a descriptor, with `os.preadv`."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import NamedTuple

import torch

_HUGE_PAGE_BYTES = 2**21
_MADV_WIPEONFORK = 18
"""Python has no name for it; linux/mman.h."""


class SnapshotMemory(NamedTuple):
    """Memory, and its location for another process with the descriptor."""

    view: memoryview
    descriptor: int
    """The process that allocated it must close it."""
    offset: int
    """Offset of the first byte in the descriptor."""
    is_of_process: bool
    """Whether the descriptor is /proc/self/mem, so that the offset is an address."""


def allocate(size_bytes: int) -> SnapshotMemory:
    """Allocate memory outside of any file system, so that it is freed with its processes.

    With huge pages (Linux), it uses these and is read through /proc/self/mem: the kernel takes six times as long to
    allocate shared memory in pages of 4 KiB.
    """
    try:
        return _of_huge_pages(size_bytes)
    except (OSError, AttributeError):  # no Linux, an old one, or one that doesn't let a process read itself
        return _of_a_file(size_bytes)


def _of_huge_pages(size_bytes: int) -> SnapshotMemory:
    memory = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Forked processes, such as loader workers, don't inherit it; otherwise each write would copy pages for them.
    memory.madvise(_MADV_WIPEONFORK)
    memory.madvise(mmap.MADV_HUGEPAGE)
    descriptor = os.open("/proc/self/mem", os.O_RDONLY)
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    skipped = -address % _HUGE_PAGE_BYTES
    try:
        memory[skipped : skipped + 1] = b"\1"
        if os.pread(descriptor, 1, address + skipped) != b"\1":
            raise OSError("/proc/self/mem reads something else")
    except OSError:
        os.close(descriptor)
        raise
    return SnapshotMemory(
        memoryview(memory)[skipped : skipped + size_bytes], descriptor, address + skipped, True
    )


def _of_a_file(size_bytes: int) -> SnapshotMemory:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stratagem-snapshot")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return SnapshotMemory(memoryview(mmap.mmap(descriptor, size_bytes)), descriptor, 0, False)
