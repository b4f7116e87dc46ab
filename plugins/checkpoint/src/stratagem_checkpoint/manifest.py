"""The manifest: makes a directory a checkpoint, and lists its contents."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch

from stratagem.errors import CheckpointError
from stratagem_checkpoint.checked_files import FileRecord
from stratagem_checkpoint.checksums import CHECKED_BYTES, DIGITS
from stratagem_checkpoint.manifest_text import FORMAT, FORMAT_VERSION, is_sealed, sealed
from stratagem_checkpoint.publication import FILE_NAME, MANIFEST
from stratagem_checkpoint.safetensors_file import DTYPES
from stratagem_checkpoint.strict_json import Count, parse_json
from stratagem_checkpoint.tiling import is_tiled


class _File(msgspec.Struct):
    name: str
    size_bytes: Count
    xxh3_128: str


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[Count, ...]
    chunks: list[tuple[Count, tuple[Count, ...], tuple[Count, ...]]]
    """Number in `files`, offsets, lengths; compact, since there may be a million of them."""


class _Document(msgspec.Struct):
    """The manifest file's content; unknown keys are allowed."""

    stratagem_version: str
    torch_version: str
    world_size: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    files: list[_File]
    tensors: dict[str, _Tensor]
    aliases: dict[str, str]


@dataclass(frozen=True)
class ChunkRecord:
    """A box of a tensor, and the file that it is in."""

    file: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """Where it ends, one number per dim."""
        return tuple(offset + length for offset, length in zip(self.offsets, self.lengths))


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as non-overlapping chunks; one without elements has no chunks."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[ChunkRecord, ...]

    def name(self, key: str, chunk: ChunkRecord) -> str:
        """What `chunk` of the tensor called `key` is called in its file."""
        whole = chunk.lengths == self.shape
        return key if whole else f"{key}@{','.join(map(str, chunk.offsets))}"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of."""

    world_size: int
    files: tuple[FileRecord, ...]
    tensors: Mapping[str, TensorRecord]
    aliases: Mapping[str, str]
    """Keys of tied tensors that aren't written themselves → the key in `tensors` that has the values."""
    stratagem_version: str
    torch_version: str

    def readable(self) -> dict[str, TensorRecord]:
        """All keys that can be read, those of tied tensors included."""
        return {**self.tensors, **{key: self.tensors[written] for key, written in self.aliases.items()}}

    def file(self, name: str) -> FileRecord | None:
        """The record of the file called `name`; None where there is none."""
        return next((record for record in self.files if record.name == name), None)

    def stored(self, files: Collection[str]) -> dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]]:
        """For each of `files`: all chunks in it by their names there, with dtype and shape."""
        found: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {name: {} for name in files}
        for key, tensor in self.tensors.items():
            for chunk in tensor.chunks:
                if chunk.file in found:
                    found[chunk.file][tensor.name(key, chunk)] = (tensor.dtype, chunk.lengths)
        return found

    def encode(self) -> bytes:
        """Return the manifest as strict JSON."""
        return sealed(self.document(), self.files)

    def document(self) -> dict[str, Any]:
        """Return the manifest as JSON values, without sizes and checksums of files, which `sealed` adds.

        It has no torch types: unpickling them would import torch in the process that writes in the background.
        """
        numbers = {record.name: number for number, record in enumerate(self.files)}
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "stratagem_version": self.stratagem_version,
            "torch_version": str(self.torch_version),
            "world_size": self.world_size,
            "files": [each.name for each in self.files],
            "tensors": {
                key: {
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": tuple(tensor.shape),
                    "chunks": [(numbers[each.file], each.offsets, each.lengths) for each in tensor.chunks],
                }
                for key, tensor in self.tensors.items()
            },
            "aliases": dict(self.aliases),
        }


def decode_manifest(text: bytes, shown: str, verify: bool = True) -> Manifest:
    """Read and check a manifest.

    Args:
        text: the file's content.
        shown: how errors name the checkpoint.
        verify: whether to compare the text with its checksum; all else is checked in any case.

    Raises:
        CheckpointError: it is damaged, or no manifest, or of another version.
    """

    def damage(reason: object) -> CheckpointError:
        return CheckpointError(f"{shown} is damaged: its manifest.json {reason}; use another checkpoint")

    try:
        document = parse_json(text)
    except ValueError as error:
        raise damage(f"is no JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{shown} is not a checkpoint: its manifest.json doesn't say format {FORMAT!r}")
    _check_version(document, shown)
    if verify and not is_sealed(text):
        raise damage("isn't what was written")
    try:
        return _manifest(msgspec.convert(document, _Document))
    except (msgspec.ValidationError, ValueError) as error:
        raise damage(f"can't be understood ({error})") from error


def _check_version(document: Mapping[str, Any], shown: str) -> None:
    version = document.get("format_version")
    if type(version) is not int or version < 1:
        raise CheckpointError(
            f"{shown} is damaged: its manifest.json says format_version {str(version)[:40]!r}, which no stratagem "
            "writes; use another checkpoint"
        )
    if version != FORMAT_VERSION:
        advice = (
            "upgrade stratagem to load it"
            if version > FORMAT_VERSION
            else "load and save it with the one that wrote it, or train again"
        )
        raise CheckpointError(
            f"{shown} has format version {version}, written by stratagem "
            f"{str(document.get('stratagem_version'))[:40]}, but this stratagem reads version {FORMAT_VERSION}; "
            f"{advice}"
        )


def _manifest(document: _Document) -> Manifest:
    files = tuple(FileRecord(each.name, each.size_bytes, each.xxh3_128) for each in document.files)
    for record in files:
        _check_file(record, document.world_size)
    if len({record.name for record in files}) != len(files):
        raise ValueError("a file is named twice")
    tensors = {key: _tensor(key, entry, files) for key, entry in document.tensors.items()}
    stored_bytes: dict[str, int] = defaultdict(int)
    for tensor in tensors.values():
        for chunk in tensor.chunks:
            stored_bytes[chunk.file] += tensor.dtype.itemsize * math.prod(chunk.lengths)
    for record in files:
        if stored_bytes[record.name] > record.size_bytes:
            raise ValueError(f"the chunks in {record.name} are longer than it")
    for key, target in document.aliases.items():
        if key in tensors or target not in tensors:
            raise ValueError(f"alias {key!r} of {target!r}")
    return Manifest(
        world_size=document.world_size,
        files=files,
        tensors=tensors,
        aliases=document.aliases,
        stratagem_version=document.stratagem_version,
        torch_version=document.torch_version,
    )


def _check_file(record: FileRecord, world_size: int) -> None:
    # A name such as ../x would make a checkpoint read files elsewhere.
    if not FILE_NAME.fullmatch(record.name) or record.name == MANIFEST:
        raise ValueError(f"file name {record.name!r}")
    rank = re.search(r"\d+", record.name)
    if rank is not None and int(rank[0]) >= world_size:
        raise ValueError(f"{record.name} of {world_size} ranks")
    if len(record.checksums) != -(-record.size_bytes // CHECKED_BYTES) * DIGITS:
        raise ValueError(f"{record.name} has {len(record.checksums)} digits of checksums")


def _tensor(key: str, entry: _Tensor, files: tuple[FileRecord, ...]) -> TensorRecord:
    if entry.dtype not in DTYPES:
        raise ValueError(f"{key!r} has the unknown dtype {entry.dtype!r}")
    chunks: list[ChunkRecord] = []
    for number, offsets, lengths in entry.chunks:
        if number >= len(files) or not files[number].name.startswith("tensors-"):
            raise ValueError(f"a chunk of {key!r} is in file {number}, which isn't one of tensors")
        if not len(offsets) == len(lengths) == len(entry.shape):
            raise ValueError(f"a chunk of {key!r} has another number of dims")
        chunks.append(ChunkRecord(files[number].name, offsets, lengths))
    # Otherwise, elements that no chunk covers would silently keep their old values.
    boxes = [(chunk.offsets, chunk.ends) for chunk in chunks]
    if not (is_tiled(entry.shape, boxes) if math.prod(entry.shape) else not chunks):
        raise ValueError(f"the chunks of {key!r} don't cover it exactly once")
    return TensorRecord(DTYPES[entry.dtype], entry.shape, tuple(chunks))
