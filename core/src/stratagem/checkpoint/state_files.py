"""The files of nested state: `STEM.json`, and `STEM.safetensors` where there are tensors in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from stratagem.checkpoint.filesystem import Filesystem
from stratagem.checkpoint.manifest import FileRecord
from stratagem.checkpoint.safetensors_file import TensorFile, encode_file
from stratagem.checkpoint.state_json import decode_state
from stratagem.errors import CheckpointError


def write_state(
    filesystem: Filesystem, folder: str, stem: str, encoded: tuple[bytes, dict[str, torch.Tensor]]
) -> list[FileRecord]:
    """Write what `encode_state` returned; empty state takes no file."""
    text, tensors = encoded
    contents: dict[str, Iterable[bytes | memoryview]] = {}
    if text != b"{}":
        contents[f"{stem}.json"] = [text]
    if tensors:
        contents[f"{stem}.safetensors"] = encode_file(
            {name: (tensor.dtype, tensor.shape, partial(_same, tensor)) for name, tensor in tensors.items()}
        )
    return [write_checked(filesystem, folder, name, parts) for name, parts in contents.items()]


def write_checked(
    filesystem: Filesystem, folder: str, name: str, parts: Iterable[bytes | memoryview]
) -> FileRecord:
    """Write a small file, to be recorded with its checksum."""
    digest = hashlib.sha256()
    kept = [bytes(part) for part in parts]
    for part in kept:
        digest.update(part)
    return FileRecord(name, filesystem.write(filesystem.join(folder, name), kept), digest.hexdigest())


def read_state(filesystem: Filesystem, folder: str, stem: str, files: Iterable[FileRecord]) -> Any:
    """Read what `write_state` wrote.

    Raises:
        CheckpointError: a file is damaged.
    """
    names = {record.name for record in files}
    if f"{stem}.json" not in names:
        return {}
    with ExitStack() as stack:
        opened: list[TensorFile] = []

        def tensor(name: str, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
            if not opened:
                path = filesystem.join(folder, f"{stem}.safetensors")
                opened.append(TensorFile(stack.enter_context(filesystem.open(path)), path))
            return opened[0].read(name, dtype, shape)

        path = filesystem.join(folder, f"{stem}.json")
        return decode_state(filesystem.read(path), tensor, path)


def check_files(filesystem: Filesystem, folder: str, files: Iterable[FileRecord], shown: str) -> None:
    """Check that all files are there, whole, and unchanged where they have a checksum.

    Raises:
        CheckpointError: names the first that isn't.
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
        if record.sha256 and hashlib.sha256(filesystem.read(path)).hexdigest() != record.sha256:
            raise CheckpointError(
                f"{shown} is damaged: the content of {record.name} isn't what was written; use another checkpoint"
            )


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
