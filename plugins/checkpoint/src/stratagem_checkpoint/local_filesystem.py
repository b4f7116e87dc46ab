"""The local file system or a shared mount, with fsync, atomic renames and locks."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import BinaryIO

from stratagem.errors import CheckpointError
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.growing_file import GrowingFile
from stratagem_checkpoint.regular_files import open_regular

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class LocalFilesystem(Filesystem):
    """Every write is on the disk when it returns, and renames are atomic."""

    def __init__(self, last: str) -> None:
        self._last = last

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder!r} can't be read: {error}; check the path") from error

    def size(self, path: str) -> int | None:
        return os.path.getsize(path) if os.path.isfile(path) else None

    def make_directory(self, path: str) -> None:
        missing = [path]
        while not os.path.isdir(os.path.dirname(missing[-1])):
            missing.append(os.path.dirname(missing[-1]))
        os.makedirs(path)
        for made in missing:
            self.sync(os.path.dirname(made))

    def write(self, path: str, parts: Iterable[bytes | memoryview]) -> int:
        size_bytes = 0
        with open(path, "xb") as stream:
            file = GrowingFile(stream.fileno())
            for part in parts:
                stream.write(part)
                size_bytes += len(part)
                file.wrote(len(part))
            stream.flush()
            file.finish()
            os.fsync(stream.fileno())
        return size_bytes

    def open(self, path: str) -> BinaryIO:
        return open_regular(path)

    def sync(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def move(self, source: str, target: str) -> None:
        os.rename(source, target)
        self.sync(os.path.dirname(target))

    def exchange(self, first: str, second: str) -> bool:
        if not _exchange(first, second):
            return False
        self.sync(os.path.dirname(second))
        return True

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            # First the manifest, so that a partly removed checkpoint isn't taken for a complete one.
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(path, self._last))
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def hold(self, folder: str) -> AbstractContextManager[object] | None:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            return None
        held = ExitStack()
        held.callback(os.close, descriptor)
        if _lock(descriptor) is False or not _names(folder, descriptor):
            held.close()
            return None
        return held

    def remove_unheld(self, folder: str) -> bool:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError:
            return False
        try:
            if not _lock(descriptor):
                return False
            shutil.rmtree(folder, ignore_errors=True)
            return True
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Lock a directory; return whether it worked, or None if directories can't be locked here.

    The kernel releases the lock however the process ends. A file with a process id wouldn't work across restarts and
    containers.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _names(folder: str, descriptor: int) -> bool:
    """Whether `folder` is still the opened directory: another process may have deleted it before the lock."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _exchange(first: str, second: str) -> bool:
    """Swap two paths with Linux's renameat2, which Python lacks; return False if it isn't supported."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return bool(done == 0)
