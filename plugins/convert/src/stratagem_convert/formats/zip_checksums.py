"""CRC-32 checksums in zip archives: write them after the stored files were filled, and compare them."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from stratagem_checkpoint.regular_files import open_regular

from stratagem.errors import CheckpointError

_LOCAL_CRC, _CENTRAL_CRC, _CENTRAL_NAME = 14, 16, 46
_DESCRIPTOR, _HAS_DESCRIPTOR = b"PK\x07\x08", 0x08


def write_checksums(stream: BinaryIO, checksums: Mapping[int, int]) -> None:
    """Write CRC-32 checksums of files into an archive, in all places where the archive has them.

    Args:
        stream: the archive, open for reading and writing. Its files are stored uncompressed.
        checksums: position in `stream` of a file's content → its CRC-32. Other files keep theirs.
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


def torn_entries(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield the files of an archive whose content doesn't match its CRC-32: name, begin and end of the content.

    Raises:
        CheckpointError: the archive can't be read.
    """
    try:
        with open_regular(path) as stream, zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                # torch.serialization.set_crc32_options(False) writes no checksums.
                if not entry.CRC:
                    continue
                try:
                    with archive.open(entry) as content:
                        while content.read(2**20):
                            pass
                except (zipfile.BadZipFile, zlib.error, EOFError):
                    # Read the header after `archive.open`, which moves the file's position and compares the header.
                    _, name, extra = _at(stream, entry.header_offset + 24, "<HHH")
                    start = entry.header_offset + 30 + name + extra
                    yield entry.filename, start, start + entry.compress_size
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        struct.error,
    ) as error:
        raise CheckpointError(f"{path} is damaged: {error}; use another checkpoint") from error


def _at(stream: BinaryIO, offset: int, form: str) -> tuple:  # type: ignore[type-arg]  # as struct.unpack returns it
    stream.seek(offset)
    return struct.unpack(form, stream.read(struct.calcsize(form)))


def _put(stream: BinaryIO, offset: int, content: bytes) -> None:
    stream.seek(offset)
    stream.write(content)
