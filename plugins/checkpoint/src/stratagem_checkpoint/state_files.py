"""The files of nested state: `STEM.json`, and `STEM.safetensors` where there are tensors in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from stratagem_checkpoint.checked_files import opened, write_checked
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.manifest import FileRecord, Manifest
from stratagem_checkpoint.safetensors_file import TensorFile, encode_file
from stratagem_checkpoint.state_json import decode_state
from stratagem_checkpoint.strict_json import STATE_LIMIT_BYTES, check_limit


def write_state(
    filesystem: Filesystem, folder: str, stem: str, encoded: tuple[bytes, dict[str, torch.Tensor]]
) -> list[FileRecord]:
    """Write what `encode_state` returned; empty state takes no file."""
    text, tensors = encoded
    contents: dict[str, Iterable[bytes | memoryview]] = {}
    check_limit(len(text), STATE_LIMIT_BYTES, filesystem.join(folder, f"{stem}.json"))
    if text != b"{}":
        contents[f"{stem}.json"] = [text]
    if tensors:
        contents[f"{stem}.safetensors"] = encode_file(
            {name: (tensor.dtype, tensor.shape, partial(_same, tensor)) for name, tensor in tensors.items()}
        )
    return [write_checked(filesystem, folder, name, parts) for name, parts in contents.items()]


def read_state(
    filesystem: Filesystem, folder: str, stem: str, manifest: Manifest, verify: bool
) -> dict[str, Any]:
    """Read what `write_state` wrote.

    Raises:
        CheckpointError: a file is damaged.
    """
    record = manifest.file(f"{stem}.json")
    if record is None:
        return {}
    with ExitStack() as stack:
        files: list[TensorFile] = []

        def tensor(name: str, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
            if not files:
                beside = manifest.file(f"{stem}.safetensors")
                if beside is None:
                    raise ValueError("it names tensors, but no file of them is in the manifest")
                files.append(TensorFile(stack.enter_context(opened(filesystem, folder, beside, verify))))
            return files[0].read(name, dtype, shape)

        file = stack.enter_context(opened(filesystem, folder, record, verify))
        check_limit(file.size_bytes, STATE_LIMIT_BYTES, file.shown)
        state = decode_state(file.read(0, file.size_bytes), tensor, file.shown)
    if not isinstance(state, dict):
        raise file.damage(f"it has a {type(state).__name__} where a dict is to be")
    return state


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
