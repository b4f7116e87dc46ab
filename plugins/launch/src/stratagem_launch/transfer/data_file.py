"""`DataFile`: a file that workers map, in memory if there is room, otherwise in the launch's folder."""

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
    """A file in memory, which no process can change once it is sealed, or a file in a folder.

    Args:
        folder: a folder that only this user can access.
        name: name of a file in that folder.
        in_memory: whether to make it in memory if the system can (Linux, memfd_create).
    """

    def __init__(self, folder: str, name: str, in_memory: bool) -> None:
        self._folder = folder
        self._size_bytes = 0
        self.is_in_memory = in_memory and self._open_in_memory()
        """Whether it is in memory. It is then freed when the last process closes it."""
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
        """Append memory of this process. Return its offset in the file.

        Args:
            address: of the memory.
            size_bytes: size of the memory.

        Raises:
            UsageError: there is no room.
        """
        # Tensors keep the alignment that they have in this process's memory.
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
        """Make the file read-only if it is in memory. Return its path, the offset 0, and its size in bytes."""
        if self.is_in_memory:
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        return self.path, 0, self._size_bytes

    def close(self) -> None:
        """Close the file. Workers that start later can't open one in memory."""
        os.close(self.descriptor)


def has_memory_for(size_bytes: int, folder: str) -> bool:
    """Return whether memory has room for so many bytes. If False, the folder has.

    Raises:
        UsageError: neither has room.
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
    """Return how many more bytes this process and its children can use; None if unknown."""
    try:
        meminfo = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * _field(meminfo, "MemAvailable:")
    except (OSError, ValueError):
        return None
    try:  # a container's own limit
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        details = (_GROUP / "memory.stat").read_text().splitlines()
        # The system can reclaim the page cache ("file"), but not the shared memory that is counted in it.
        return min(free, limit - used + _field(details, "file") - _field(details, "shmem"))
    except (OSError, ValueError):  # ValueError: "max", no limit
        return free


def _field(lines: Iterable[str], name: str) -> int:
    for line in lines:
        if line.split()[0] == name:
            return int(line.split()[1])
    raise ValueError(name)
