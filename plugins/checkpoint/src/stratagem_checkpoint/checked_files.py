"""Writes a checkpoint's files with checksums, and verifies them when reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from stratagem.errors import CheckpointError
from stratagem_checkpoint.checksums import CHECKED_BYTES, BlockChecksums, CheckedFile
from stratagem_checkpoint.filesystem import Filesystem


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    checksums: str
    """Checksums of its blocks, from `BlockChecksums.hexdigest`."""


def write_checked(
    filesystem: Filesystem, folder: str, name: str, parts: Iterable[bytes | memoryview]
) -> FileRecord:
    """Write a new file; checksums are computed from what is in memory, not from what reached the disk."""
    checksums = BlockChecksums()
    size_bytes = filesystem.write(filesystem.join(folder, name), checksums.passing(parts))
    return FileRecord(name, size_bytes, checksums.hexdigest())


@contextmanager
def opened(filesystem: Filesystem, folder: str, record: FileRecord, verify: bool) -> Iterator[CheckedFile]:
    """Open a file that `write_checked` wrote.

    Raises:
        CheckpointError: it has another length.
    """
    path = filesystem.join(folder, record.name)
    with closing(filesystem.open(path)) as stream:
        yield CheckedFile(stream, path, record.size_bytes, record.checksums if verify else None)


def check_files(
    filesystem: Filesystem, folder: str, files: Iterable[FileRecord], shown: str, verify: bool = True
) -> None:
    """Check that all files exist in full length, and that state files are unchanged. Doesn't read tensor files.

    Raises:
        CheckpointError: names the first bad file.
    """
    for record in files:
        path = filesystem.join(folder, record.name)
        size_bytes = filesystem.size(path)
        if size_bytes is None:
            raise CheckpointError(f"{shown} is incomplete: {record.name} is missing; use another checkpoint")
        if size_bytes != record.size_bytes:
            raise CheckpointError(
                f"{shown} is damaged: {record.name} has {size_bytes} bytes instead of {record.size_bytes}; "
                "use another checkpoint"
            )
        if verify and not record.name.startswith("tensors-"):
            with opened(filesystem, folder, record, verify) as file:
                file.verify()


def verify_share(
    filesystem: Filesystem, folder: str, files: Iterable[FileRecord], index: int, count: int
) -> None:
    """Compare every `count`-th block of the files, from number `index` on, with its checksum.

    Raises:
        CheckpointError: names the first file that isn't what was written.
    """
    passed = 0
    for record in files:
        with opened(filesystem, folder, record, verify=True) as file:
            for start in range(0, record.size_bytes, CHECKED_BYTES):
                if passed % count == index:
                    file.read(start, min(CHECKED_BYTES, record.size_bytes - start))
                passed += 1
