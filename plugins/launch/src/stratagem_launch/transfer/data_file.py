"""`DataFile`: what workers map, in memory where there is room, otherwise in the launch's folder."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from stratagem.errors import UsageError, bytes_text
from stratagem_launch.transfer.mapped_memory import memory_at
from stratagem_launch.transfer.shared import NAME

_ALIGNED_BYTES = 64
_CHUNK_BYTES = 64 << 20
_GROUP = Path("/sys/fs/cgroup")


class DataFile:
    """A file without a name that no process can change once it is sealed, or one in a folder.

    Args:
        folder: that this user alone can reach.
        name: of the file, should it come there.
        in_memory: whether to make it in memory where the system can (Linux, memfd_create).
    """

    def __init__(self, folder: str, name: str, in_memory: bool) -> None:
        self._folder = folder
        self._size_bytes = 0
        self.is_in_memory = in_memory and self._open_in_memory()
        """Whether it takes memory, and goes with the processes that have it open."""
        if not self.is_in_memory:
            self.path = os.path.join(folder, name)
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _open_in_memory(self) -> bool:
        if not hasattr(os, "memfd_create"):
            return False
        self.descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        try:
            if os.stat(os.path.dirname(self.path)).st_uid == os.geteuid() and os.path.exists(self.path):
                return True  # workers may open it
        except OSError:
            pass
        os.close(self.descriptor)
        return False

    def append(self, address: int, size_bytes: int) -> int:
        """Write memory of this process, and return where in the file it begins.

        Args:
            address: of the memory.
            size_bytes: of it.

        Raises:
            UsageError: there is no room.
        """
        begin = self._size_bytes + (address - self._size_bytes) % _ALIGNED_BYTES
        for done in range(0, size_bytes, _CHUNK_BYTES):
            self._write(memory_at(address + done, min(_CHUNK_BYTES, size_bytes - done)), begin + done)
        self._size_bytes = begin + size_bytes
        return begin

    def _write(self, content: memoryview, offset: int) -> None:
        try:
            while content:
                written = os.pwrite(self.descriptor, content, offset)
                content, offset = content[written:], offset + written
        except OSError as error:
            raise UsageError(
                f"the tensors and arrays for the workers don't fit into {self._folder} ({error.strerror}): set "
                "TMPDIR to a folder with more room, or let each worker read its data from files"
            ) from error

    def seal(self) -> tuple[str, int, int]:
        """Make it read-only, if that is possible; return path, 0 and size in bytes."""
        if self.is_in_memory:
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        return self.path, 0, self._size_bytes

    def close(self) -> None:
        """Workers that are started from now on don't find it."""
        os.close(self.descriptor)


def has_memory_for(size_bytes: int, folder: str) -> bool:
    """Return whether so much can be copied in memory; False means that the folder has the room.

    Raises:
        UsageError: neither has.
    """
    free = free_memory_bytes()
    if free is None or size_bytes < 0.8 * free:
        return True
    on_disk = shutil.disk_usage(folder).free
    if size_bytes < on_disk:
        return False
    raise UsageError(
        f"workers need {bytes_text(size_bytes)} of tensors and arrays, and {bytes_text(free)} of "
        f"memory and {bytes_text(on_disk)} in {folder} are free: set TMPDIR to a folder with more room, or let "
        "each worker read its data from files, as with numpy.memmap"
    )


def free_memory_bytes() -> int | None:
    """Return how much this process and its children could still take; None if unknown."""
    try:
        meminfo = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * _field(meminfo, "MemAvailable:")
    except (OSError, ValueError):
        return None
    try:  # of a container
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        details = (_GROUP / "memory.stat").read_text().splitlines()
        return min(free, limit - used + _field(details, "file") - _field(details, "shmem"))
    except (OSError, ValueError):  # ValueError: "max", no limit
        return free


def _field(lines: Iterable[str], name: str) -> int:
    for line in lines:
        if line.split()[0] == name:
            return int(line.split()[1])
    raise ValueError(name)
