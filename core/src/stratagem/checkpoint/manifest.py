"""The manifest: what makes a directory a checkpoint, and what is in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stratagem.checkpoint.publication import FILE_NAME
from stratagem.checkpoint.safetensors_file import DTYPES
from stratagem.errors import CheckpointError

FORMAT = "stratagem-checkpoint"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str | None
    """In hexadecimal; None for the big files of tensors, whose size alone is checked."""


@dataclass(frozen=True)
class PieceRecord:
    """A box of a tensor, and the file that it is in."""

    file: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class TensorRecord:
    """A whole tensor, of pieces that don't overlap; one without elements has none."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[PieceRecord, ...]

    def name(self, key: str, piece: PieceRecord) -> str:
        """What `piece` of the tensor called `key` is called in its file."""
        whole = piece.lengths == self.shape
        return key if whole else f"{key}@{','.join(map(str, piece.offsets))}"


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

    def encode(self) -> bytes:
        """As strict JSON."""
        numbers = {record.name: number for number, record in enumerate(self.files)}
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "stratagem_version": self.stratagem_version,
            "torch_version": self.torch_version,
            "world_size": self.world_size,
            "files": [
                {"name": each.name, "size_bytes": each.size_bytes}
                | ({"sha256": each.sha256} if each.sha256 else {})
                for each in self.files
            ],
            "tensors": {
                key: {
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": tensor.shape,
                    # Compact, since there may be a million of them: number in `files`, offsets, lengths.
                    "pieces": [(numbers[each.file], each.offsets, each.lengths) for each in tensor.pieces],
                }
                for key, tensor in self.tensors.items()
            },
            "aliases": dict(self.aliases),
        }
        return json.dumps(document, allow_nan=False).encode()


def decode_manifest(text: bytes, shown: str) -> Manifest:
    """Read and check a manifest.

    Args:
        text: the file's content.
        shown: how errors name the checkpoint.

    Raises:
        CheckpointError: it is damaged, or no manifest, or of a newer version.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CheckpointError(
            f"{shown} is damaged: its manifest.json is no JSON ({error}); use another checkpoint"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{shown} is not a checkpoint: its manifest.json doesn't say format {FORMAT!r}")
    version = document.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise CheckpointError(
            f"{shown} has format version {version}, written by stratagem "
            f"{document.get('stratagem_version')}, but this stratagem reads versions up to {FORMAT_VERSION}; "
            "upgrade stratagem to load it"
        )
    try:
        return _manifest(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(
            f"{shown} is damaged: its manifest.json can't be understood ({type(error).__name__}: {error}); "
            "use another checkpoint"
        ) from error


def _manifest(document: Mapping[str, Any]) -> Manifest:
    files = tuple(
        FileRecord(each["name"], int(each["size_bytes"]), each.get("sha256")) for each in document["files"]
    )
    for record in files:
        # A name such as ../x would make a checkpoint read files elsewhere.
        if not FILE_NAME.fullmatch(record.name):
            raise ValueError(f"file name {record.name!r}")
    tensors = {key: _tensor(key, entry, files) for key, entry in document["tensors"].items()}
    aliases = {str(key): str(target) for key, target in document["aliases"].items()}
    for key, target in aliases.items():
        if key in tensors or target not in tensors:
            raise ValueError(f"alias {key!r} of {target!r}")
    return Manifest(
        world_size=int(document["world_size"]),
        files=files,
        tensors=tensors,
        aliases=aliases,
        stratagem_version=str(document["stratagem_version"]),
        torch_version=str(document["torch_version"]),
    )


def _tensor(key: str, entry: Mapping[str, Any], files: tuple[FileRecord, ...]) -> TensorRecord:
    shape = tuple(int(size) for size in entry["shape"])
    pieces = tuple(
        PieceRecord(files[number].name, tuple(map(int, offsets)), tuple(map(int, lengths)))
        for number, offsets, lengths in entry["pieces"]
    )
    for piece in pieces:
        if len(piece.offsets) != len(shape) or len(piece.lengths) != len(shape):
            raise ValueError(f"a piece of {key!r} has another number of dims")
        if any(o < 0 or n < 0 or o + n > size for o, n, size in zip(piece.offsets, piece.lengths, shape)):
            raise ValueError(f"a piece of {key!r} lies outside of it")
    # Without this, what no piece covers would silently keep its old values.
    if sum(math.prod(piece.lengths) for piece in pieces) != math.prod(shape):
        raise ValueError(f"the pieces of {key!r} don't add up to it")
    return TensorRecord(DTYPES[entry["dtype"]], shape, pieces)
