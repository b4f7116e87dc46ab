"""The files of nested state: `STEM.json`, and `STEM.safetensors` where there are tensors in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Union

import torch

from stratagem_checkpoint.checked_files import opened
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.manifest import Manifest
from stratagem_checkpoint.safetensors_file import Chunk, TensorFile, encode_file
from stratagem_checkpoint.state_json import decode_state
from stratagem_checkpoint.strict_json import STATE_LIMIT_BYTES, check_limit

Content = Union[bytes, Mapping[str, Chunk]]
"""Content of a file: its bytes, or the chunks of a safetensors file."""


def state_contents(stem: str, encoded: tuple[bytes, dict[str, torch.Tensor]]) -> dict[str, Content]:
    """Return the files for what `encode_state` returned, by name; empty state takes none.

    Raises:
        CheckpointError: there is too much of it.
    """
    text, tensors = encoded
    contents: dict[str, Content] = {}
    check_limit(len(text), STATE_LIMIT_BYTES, f"{stem}.json")
    if text != b"{}":
        contents[f"{stem}.json"] = text
    if tensors:
        contents[f"{stem}.safetensors"] = {
            name: (tensor.dtype, tensor.shape, partial(_same, tensor)) for name, tensor in tensors.items()
        }
    return contents


def parts_of(content: Content) -> Iterable[bytes | memoryview]:
    """The bytes of a file, part by part."""
    return [content] if isinstance(content, bytes) else encode_file(content)


def read_state(
    filesystem: Filesystem, folder: str, stem: str, manifest: Manifest, verify: bool
) -> dict[str, Any]:
    """Read what `state_contents` is the content of.

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
