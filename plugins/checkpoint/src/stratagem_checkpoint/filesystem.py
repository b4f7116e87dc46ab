"""The file system operations that checkpoints need; `filesystem_for` chooses a file system for a path or URL."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO, cast

from stratagem.errors import CheckpointError, short


class Filesystem(ABC):
    """Paths are strings in this file system's own form, without a protocol."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes see what this one writes."""
        return True

    def join(self, folder: str, name: str) -> str:
        """The path of `name` in `folder`."""
        return f"{folder.rstrip('/')}/{name}"

    def split(self, path: str) -> tuple[str, str]:
        """The folder that holds `path`, and the name of `path` in it."""
        folder, _, name = path.rstrip("/").rpartition("/")
        return folder or "/", name

    @abstractmethod
    def is_directory(self, path: str) -> bool:
        """Whether there is a directory, or a link to one."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is anything."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Sorted names in `folder`; none where there is no such folder."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Length of the file in bytes; None where there is no file."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Create a new directory, with missing parents.

        Raises:
            FileExistsError: it exists.
        """

    @abstractmethod
    def write(self, path: str, parts: Iterable[bytes | memoryview]) -> int:
        """Write a new file, on stable storage when this returns. Returns its size in bytes."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open a file for reading, seekable."""

    @abstractmethod
    def sync(self, folder: str) -> None:
        """Bring the names in `folder` to stable storage."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Rename the directory `source` to `target`, which must not exist."""

    @abstractmethod
    def exchange(self, first: str, second: str) -> bool:
        """Swap two directories atomically; return False, without doing anything, if that isn't available."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete a file, or a directory with its contents; do nothing if it doesn't exist."""

    @abstractmethod
    def hold(self, folder: str) -> AbstractContextManager[object] | None:
        """Mark `folder` as in use until the returned context is closed or this process ends.

        Return None if another process holds it, or it doesn't exist any more.
        """

    @abstractmethod
    def remove_unheld(self, folder: str) -> bool:
        """Delete `folder`, unless a process holds it or that is unknown; return whether it was deleted."""

    def read(self, path: str, size_bytes: int) -> bytes:
        """The first bytes of a file; fewer where it is shorter."""
        with self.open(path) as stream:
            return stream.read(size_bytes)


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Turn errors of fsspec, whose types and texts depend on the store's library, into CheckpointErrors.

    Raises:
        CheckpointError: any error, except that a file is missing or exists already.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, CheckpointError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{short(path)} can't be reached: {type(error).__name__}: {reason}") from error


class RemoteFilesystem(Filesystem):
    """Anything that fsspec reaches, such as memory:// or s3://.

    Few stores can rename or sync, so a move copies file after file, with `last` at the end.
    """

    def __init__(self, backend: Any, last: str) -> None:
        self._backend = backend
        self._last = last

    @property
    def is_shared(self) -> bool:
        return "memory" not in self._backend.protocol

    def is_directory(self, path: str) -> bool:
        with reaching(path):
            return bool(self._fresh(path).isdir(path))

    def exists(self, path: str) -> bool:
        with reaching(path):
            return bool(self._fresh(path).exists(path))

    def names(self, folder: str) -> list[str]:
        try:
            with reaching(folder):
                found = self._fresh(folder).ls(folder, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def size(self, path: str) -> int | None:
        try:
            with reaching(path):
                info = self._fresh(path).info(path)
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def make_directory(self, path: str) -> None:
        # Object stores have no directories, so this does nothing there. The random name suffices.
        with reaching(path):
            self._backend.makedirs(path, exist_ok=False)

    def write(self, path: str, parts: Iterable[bytes | memoryview]) -> int:
        size_bytes = 0
        with reaching(path), self._backend.open(path, "wb") as stream:
            for part in parts:
                stream.write(part)
                size_bytes += len(part)
        return size_bytes

    def open(self, path: str) -> BinaryIO:
        with reaching(path):
            return cast("BinaryIO", self._backend.open(path, "rb"))

    def sync(self, folder: str) -> None:
        return None

    def move(self, source: str, target: str) -> None:
        names = self.names(source)
        self._backend.makedirs(target, exist_ok=True)
        for name in sorted(names, key=lambda name: (name == self._last, name)):
            self._backend.copy(self.join(source, name), self.join(target, name))
        self.remove(source)

    def exchange(self, first: str, second: str) -> bool:
        return False

    def remove(self, path: str) -> None:
        # First the manifest, so that a partly removed checkpoint isn't taken for a complete one.
        for doomed in (self.join(path, self._last), path):
            if self.exists(doomed):
                self._backend.rm(doomed, recursive=True)

    def hold(self, folder: str) -> AbstractContextManager[object] | None:
        return nullcontext()

    def remove_unheld(self, folder: str) -> bool:
        return False

    def _fresh(self, path: str) -> Any:
        """Return the client without its cached listings, since other processes write, too."""
        self._backend.invalidate_cache(path)
        return self._backend


def filesystem_for(path: str, last: str) -> tuple[Filesystem, str]:
    """Choose the file system for a path or URL.

    Args:
        path: a local path, or a URL as fsspec takes it.
        last: the file that makes a directory a checkpoint, and so is moved last.

    Returns:
        The file system, and the path in its own form, absolute where it is local.

    Raises:
        CheckpointError: the URL has an unknown scheme, or its file system can't be opened.
    """
    from stratagem_checkpoint.local_filesystem import LocalFilesystem

    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)", path) is None:
        return LocalFilesystem(last), os.path.abspath(os.path.expanduser(path))

    from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # fsspec has no types
    from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # fsspec has no types

    try:
        backend, original_module = url_to_fs(path)
    except Exception as error:  # an unknown scheme, a library that isn't installed, a host that isn't there
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{short(path)} can't be reached: {type(error).__name__}: {reason}") from error
    if isinstance(backend, LocalFileSystem):
        return LocalFilesystem(last), os.path.abspath(original_module)
    return RemoteFilesystem(backend, last), str(original_module)
