"""The manifest file's text. Doesn't import torch, since the background process doesn't."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from stratagem_checkpoint.checked_files import FileRecord
from stratagem_checkpoint.checksums import DIGITS, checksum

FORMAT = "stratagem-checkpoint"
FORMAT_VERSION = 2

_SEAL = b', "xxh3_128": "%b"}'
"""The end of a manifest: the checksum of all bytes before it."""
_SEAL_BYTES = len(_SEAL % bytes(DIGITS))


def sealed(document: Mapping[str, Any], files: Iterable[FileRecord]) -> bytes:
    """Return a manifest as strict JSON that ends with its own checksum.

    Args:
        document: what `Manifest.document` returns: `files` has names alone.
        files: those of these names, in any order.
    """
    by_name = {record.name: record for record in files}
    entries = [
        {"name": name, "size_bytes": by_name[name].size_bytes, "xxh3_128": by_name[name].checksums}
        for name in document["files"]
    ]
    text = json.dumps({**document, "files": entries}, allow_nan=False).encode()
    return text[:-1] + _SEAL % checksum(text[:-1]).encode()


def is_sealed(text: bytes) -> bool:
    """Whether a manifest's own checksum matches."""
    return text[-_SEAL_BYTES:] == _SEAL % checksum(text[:-_SEAL_BYTES]).encode()
