"""Check that a checkpoint is as it was written: every file, and every block of it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator

from stratagem_checkpoint.checked_files import FileRecord, opened
from stratagem_checkpoint.checksums import CHECKED_BYTES
from stratagem_checkpoint.filesystem import Filesystem, filesystem_for
from stratagem_checkpoint.loading import read_manifest
from stratagem_checkpoint.manifest import Manifest
from stratagem_checkpoint.publication import MANIFEST

from stratagem.errors import CheckpointError
from stratagem_convert.formats.converting import format_of, read_weights
from stratagem_convert.formats.safetensors_files import header_of
from stratagem_convert.formats.stored import Weights, WeightsReader
from stratagem_convert.formats.zip_checksums import torn_entries

_ARCHIVES = ("torch", "lightning", "deepspeed")
"""Formats of files that torch.save writes, which are zip archives."""


def faults(path: str) -> Iterator[str]:
    """Yield the damages of a checkpoint, each as a clause with the file and its tensors.

    Our own checkpoints are compared with their checksums, files of torch.save with those of their archives. Other
    formats have none: their tensors are read, which finds missing and short files.

    Raises:
        CheckpointError: there is no checkpoint, or its manifest or header can't be read.
    """
    if format_of(path) != "stratagem":
        weights = read_weights(path)
        with WeightsReader(weights) as reader:
            for name in weights.tensors:
                try:
                    for _ in reader.blocks(name):
                        pass
                except CheckpointError as error:
                    yield f"{name}: {error}"
        yield from _torn_archives(weights)
        return
    filesystem, name = filesystem_for(path, MANIFEST)
    folder, manifest = read_manifest(filesystem, name, path)
    for record in manifest.files:
        size_bytes = filesystem.size(filesystem.join(folder, record.name))
        if size_bytes is None:
            yield f"{record.name} is missing{_tensors(manifest, record)}"
        elif size_bytes != record.size_bytes:
            yield f"{record.name} has {size_bytes} bytes instead of {record.size_bytes}{_tensors(manifest, record)}"
        else:
            yield from _torn_blocks(filesystem, folder, manifest, record)


def _torn_archives(weights: Weights) -> Iterator[str]:
    """Compare the files in torch.save's archives with their CRC-32."""
    places = [(chunk, name) for name, tensor in weights.tensors.items() for chunk in tensor.chunks]
    files = dict.fromkeys(
        [*([weights.path] if os.path.isfile(weights.path) else []), *(p.file for p, _ in places)]
    )
    for file in files:
        if weights.format in _ARCHIVES and zipfile.is_zipfile(file):
            for entry, start, end in torn_entries(file):
                hit = [name for chunk, name in places if chunk.file == file and start <= chunk.start < end]
                yield f"{os.path.basename(file)}: {entry} isn't what was written{f': {_some(hit)}' if hit else ''}"


def _torn_blocks(
    filesystem: Filesystem, folder: str, manifest: Manifest, record: FileRecord
) -> Iterator[str]:
    torn: list[int] = []
    places: dict[str, tuple[int, int]] = {}
    with opened(filesystem, folder, record, verify=True) as file:
        for start in range(0, record.size_bytes, CHECKED_BYTES):
            try:
                file.read(start, min(CHECKED_BYTES, record.size_bytes - start))
            except CheckpointError:
                torn.append(start)
        if torn and record.name.endswith(".safetensors") and torn[0] > 0:
            header, _ = header_of(file)
            places = {
                name: (tensor.chunks[0].start, tensor.chunks[0].start + tensor.size_bytes)
                for name, tensor in header.items()
            }
    for start in torn:
        end = min(start + CHECKED_BYTES, record.size_bytes)
        hit = [name for name, (begin, after) in places.items() if begin < end and start < after]
        what = f": {_some(hit)}" if hit else _tensors(manifest, record) if start == 0 else ""
        yield f"{record.name}: bytes {start} to {end} aren't what was written{what}"


def _tensors(manifest: Manifest, record: FileRecord) -> str:
    names = list(manifest.stored([record.name])[record.name])
    return f": {_some(names)}" if names else ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
