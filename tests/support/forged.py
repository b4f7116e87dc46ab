"""Checkpoints whose checksums are right and whose content isn't: what may be written on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem_checkpoint.checksums import BlockChecksums, checksum

MANIFEST = "manifest.json"


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest's document in place, and seal it again."""
    document = json.loads((folder / MANIFEST).read_text())
    document.pop("xxh3_128", None)
    change(document)
    write_manifest(folder, json.dumps(document))


def write_manifest(folder: Path, text: str) -> None:
    """Write a manifest of this JSON, whose checksum is added."""
    begin = text.removesuffix("}").encode()
    (folder / MANIFEST).write_bytes(begin + b', "xxh3_128": "%b"}' % checksum(begin).encode())


def rewrite_file(folder: Path, name: str, content: bytes) -> None:
    """Put other bytes into a file, and its length and checksums into the manifest."""
    (folder / name).write_bytes(content)
    checksums = BlockChecksums()
    list(checksums.passing([content]))

    def adopt(document: dict[str, Any]) -> None:
        record = next(each for each in document["files"] if each["name"] == name)
        record.update(size_bytes=len(content), xxh3_128=checksums.hexdigest())

    rewrite_manifest(folder, adopt)


def rewrite_state(folder: Path, change: Callable[[Any], Any], name: str = "state.json") -> None:
    """Change a state's document in place."""
    document = json.loads((folder / name).read_text())
    change(document)
    rewrite_file(folder, name, json.dumps(document).encode())
