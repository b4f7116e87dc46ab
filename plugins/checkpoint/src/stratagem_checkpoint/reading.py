"""Reads boxes (slices in all dims) of tensors from the files of a checkpoint.

Doesn't import torch.distributed.checkpoint, which takes half as long as torch itself: full tensors don't need it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from stratagem_checkpoint.checked_files import opened
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.manifest import ChunkRecord, Manifest
from stratagem_checkpoint.safetensors_file import TensorFile


class Part(NamedTuple):
    """A box of one chunk, and the target that it fills."""

    key: str
    """Key of the tensor; may be a tied one's."""
    chunk: ChunkRecord
    offsets: Sequence[int]
    """Where in the chunk the box begins, one number per dim; its shape is that of the target."""
    resolve: Callable[[], torch.Tensor]
    """Returns the target, of any device and dtype, when it is about to be filled."""
    commit: Callable[[torch.Tensor], None] = lambda target: None
    """Called with the target once it is filled."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is an ordinary tensor, not a subclass such as DTensor that holds only a part."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def whole(manifest: Manifest, targets: Mapping[str, torch.Tensor]) -> Iterator[Part]:
    """Yield the parts that fill plain tensors from all of their chunks.

    Args:
        manifest: of a checkpoint that has these tensors, in these shapes.
        targets: by key.
    """
    readable = manifest.readable()
    for key, target in targets.items():
        for chunk in readable[key].chunks:
            yield Part(key, chunk, [0] * target.dim(), partial(_box, target, chunk))


def read_parts(
    filesystem: Filesystem, folder: str, manifest: Manifest, parts: Iterable[Part], verify: bool = True
) -> None:
    """Fill the targets of `parts`, one file after the other.

    Raises:
        CheckpointError: a file isn't what the manifest says, or its checksums if `verify`.
    """
    by_file: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        by_file[part.chunk.file].append(part)
    stored = manifest.stored(by_file)
    for file, of_file in by_file.items():
        record = next(each for each in manifest.files if each.name == file)
        with opened(filesystem, folder, record, verify) as checked, torch.no_grad():
            tensors = TensorFile(checked, stored[file])
            named = [(_name(manifest, part), part) for part in of_file]
            # In the order of the file, so that each block is read and verified once.
            for name, part in sorted(named, key=lambda each: tensors.start(each[0])):
                target = part.resolve().detach()
                dtype, lengths = stored[file][name]
                tensors.read_into(target, name, dtype, lengths, part.offsets)
                part.commit(target)


def _name(manifest: Manifest, part: Part) -> str:
    """What the chunk of a part is called in its file."""
    written = manifest.aliases.get(part.key, part.key)
    return manifest.tensors[written].name(written, part.chunk)


def _box(target: torch.Tensor, chunk: ChunkRecord) -> torch.Tensor:
    """Return the view of a whole tensor that a chunk fills."""
    view = target.detach()
    for dim, (offset, length) in enumerate(zip(chunk.offsets, chunk.lengths)):
        view = view.narrow(dim, offset, length)
    return view
