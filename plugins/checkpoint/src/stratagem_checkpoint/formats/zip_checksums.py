"""CRC-32s in a zip archive whose stored files were filled after it was written."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from typing import BinaryIO

_LOCAL_CRC, _CENTRAL_CRC, _CENTRAL_NAME = 14, 16, 46
_DESCRIPTOR, _HAS_DESCRIPTOR = b"PK\x07\x08", 0x08


def write_checksums(stream: BinaryIO, checksums: Mapping[int, int]) -> None:
    """Write the CRC-32 of files into an archive, wherever it has one.

    Args:
        stream: the archive, open for reading and writing; its files are stored, not compressed.
        checksums: where the content of a file begins in `stream` → its CRC-32; other files keep theirs.
    """
    with zipfile.ZipFile(stream) as archive:
        entries, central = archive.infolist(), archive.start_dir
    for entry in entries:
        local = entry.header_offset
        _, name, extra = _at(stream, local + 24, "<HHH")
        start = local + 30 + name + extra
        if start in checksums:
            checksum = struct.pack("<I", checksums[start])
            _put(stream, local + _LOCAL_CRC, checksum)
            _put(stream, central + _CENTRAL_CRC, checksum)
            end = start + entry.file_size
            if entry.flag_bits & _HAS_DESCRIPTOR:
                (signature,) = _at(stream, end, "4s")
                _put(stream, end + (4 if signature == _DESCRIPTOR else 0), checksum)
        central += _CENTRAL_NAME + sum(_at(stream, central + 28, "<HHH"))


def _at(stream: BinaryIO, offset: int, form: str) -> tuple:  # type: ignore[type-arg]
    stream.seek(offset)
    return struct.unpack(form, stream.read(struct.calcsize(form)))


def _put(stream: BinaryIO, offset: int, content: bytes) -> None:
    stream.seek(offset)
    stream.write(content)
