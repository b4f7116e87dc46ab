"""Checksums of files by block, so that a part of a file can be verified by reading little more than that part.

128-bit XXH3 detects accidental damage at the speed of memory. It isn't a signature: an attacker who can write a file
can also write its checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import xxhash

from stratagem.errors import CheckpointError

CHECKED_BYTES = 2**20
"""Length of a block; a file's last block may be shorter. Part of the format."""
DIGITS = 32
"""Hexadecimal digits of a block's checksum."""


def checksum(content: bytes | memoryview) -> str:
    """Return the checksum of one block, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(content)


class BlockChecksums:
    """Computes the checksums of a file's blocks while its bytes pass through."""

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._block = xxhash.xxh3_128()
        self._room = CHECKED_BYTES

    def passing(self, parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
        """Yield the bytes of `parts` in order, directly after hashing, while they are in the processor's cache."""
        for part in parts:
            left = memoryview(part)
            while left:
                own, left = left[: self._room], left[self._room :]
                self._add(own)
                yield own

    def hexdigest(self) -> str:
        """All blocks' checksums, one after the other; none for an empty file."""
        is_begun = self._room < CHECKED_BYTES
        return "".join([*self._digests, self._block.hexdigest()] if is_begun else self._digests)

    def _add(self, part: memoryview) -> None:
        self._block.update(part)
        self._room -= len(part)
        if not self._room:
            self._digests.append(self._block.hexdigest())
            self._block.reset()
            self._room = CHECKED_BYTES


class CheckedFile:
    """An open file whose bytes are compared with their checksums before the caller gets them.

    Args:
        stream: seekable; the caller closes it.
        shown: the file's name in errors.
        size_bytes: the expected length; None accepts any length.
        checksums: from `BlockChecksums.hexdigest`; None verifies nothing.

    Raises:
        CheckpointError: the file has another length.
    """

    def __init__(
        self, stream: BinaryIO, shown: str, size_bytes: int | None = None, checksums: str | None = None
    ) -> None:
        self._stream = stream
        self.shown = shown
        self.size_bytes = stream.seek(0, 2)
        self._checksums = checksums
        self._last = (-1, memoryview(b""))
        """Number and bytes of the last block read, which consecutive small reads share."""
        if size_bytes is not None and self.size_bytes != size_bytes:
            raise self.damage(f"it has {self.size_bytes} bytes instead of {size_bytes}")

    def damage(self, reason: object) -> CheckpointError:
        """Return the error for a damaged file."""
        return CheckpointError(f"{self.shown} is damaged: {reason}; use another checkpoint")

    def read(self, start: int, size: int) -> memoryview:
        """Return `size` bytes from `start` on; valid until the next call.

        Raises:
            CheckpointError: the file is too short, or its checksums don't match.
        """
        if not 0 <= start <= start + size <= self.size_bytes:
            raise self.damage(f"it ends before byte {start + size}")
        if not size:
            return memoryview(b"")
        if self._checksums is None:
            return self._fill(memoryview(bytearray(size)), start)
        number, after = start // CHECKED_BYTES, (start + size - 1) // CHECKED_BYTES + 1
        if (number, 1) != (self._last[0], after - number):
            blocks = self._read_blocks(number, after)
            tail = blocks[(after - 1 - number) * CHECKED_BYTES :]
            # A copy, so that the kept block doesn't keep all blocks in memory.
            self._last = (after - 1, memoryview(bytearray(tail)) if after - number > 1 else tail)
        else:
            blocks = self._last[1]
        skipped = start - number * CHECKED_BYTES
        return blocks[skipped : skipped + size]

    def verify(self) -> None:
        """Compare the whole file with its checksums.

        Raises:
            CheckpointError: it isn't what was written.
        """
        for start in range(0, self.size_bytes, CHECKED_BYTES):
            self.read(start, min(CHECKED_BYTES, self.size_bytes - start))

    def _read_blocks(self, number: int, after: int) -> memoryview:
        begin, end = number * CHECKED_BYTES, min(after * CHECKED_BYTES, self.size_bytes)
        blocks = memoryview(bytearray(end - begin))
        known = len(self._last[1]) if number == self._last[0] else 0
        blocks[:known] = self._last[1][:known]
        for start in range(begin + known, end, CHECKED_BYTES):
            # Verify each block while it is in the processor's cache.
            block = self._fill(blocks[start - begin : start - begin + CHECKED_BYTES], start)
            at = start // CHECKED_BYTES * DIGITS
            if checksum(block) != (self._checksums or "")[at : at + DIGITS]:
                raise self.damage(f"bytes {start} to {start + len(block)} aren't what was written")
        return blocks

    def _fill(self, view: memoryview, start: int) -> memoryview:
        self._stream.seek(start)
        left = view
        while left:
            count = self._stream.readinto(left)  # type: ignore[attr-defined]  # raw and buffered readers have it; BinaryIO doesn't declare it
            if not count:
                raise self.damage(f"it ends before byte {start + len(view)}")
            left = left[count:]
        return view
