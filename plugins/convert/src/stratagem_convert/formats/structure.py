"""Write nested values with tensors in files in the format of torch.save, without holding the tensors in memory."""

from __future__ import annotations

import math
import mmap
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import (
    StoredTensor,
    Weights,
    WeightsReader,
    raw_bytes,
    sync,
    write_parts,
)
from stratagem_convert.formats.zip_checksums import write_checksums


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same dicts, lists and tuples, with `change` applied to each tensor, in memory or in a file."""
    if isinstance(value, (torch.Tensor, StoredTensor)):
        return change(value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, map_tensors(each, change)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(map_tensors(each, change) for each in value)
    return value


def in_memory(value: Any, reader: WeightsReader) -> Any:
    """Read all tensors of a value into memory. Use it for settings, which have only small ones."""
    return map_tensors(value, lambda each: reader.read(each) if isinstance(each, StoredTensor) else each)


def state_dict_of(weights: Weights) -> OrderedDict[str, StoredTensor]:
    """Return the weights as a state dict for `write_structure`. Tied tensors are the same object."""
    state_dict = OrderedDict(weights.tensors)
    state_dict.update({name: state_dict[kept] for name, kept in weights.aliases.items()})
    return state_dict


def write_structure(value: Any, weights: Weights, path: str) -> None:
    """Let torch.save reserve space for the tensors, and fill it block by block.

    Args:
        value: the value to save. A tensor that is in it several times shares its memory after loading.
        weights: has the files of the tensors.
        path: a new file.

    Raises:
        CheckpointError: something in it isn't a tensor, number or text.
    """
    from stratagem_convert.formats.torch_files import load_structure, stored_at, why_refused

    room: dict[int, torch.Tensor] = {}
    tensors: list[Any] = []

    def blank(tensor: Any) -> torch.Tensor:
        if id(tensor) not in room:
            room[id(tensor)] = _unbacked(tensor.dtype, tuple(tensor.shape))
        tensors.append(tensor)
        return room[id(tensor)]

    blanked = map_tensors(value, blank)
    with torch.serialization.skip_data():
        torch.save(blanked, path)
    del blanked
    room.clear()
    places: list[StoredTensor | None] = []
    try:
        written = load_structure(path, path)
    except CheckpointError as error:
        raise CheckpointError(
            f"{weights.path} has something in its optimizers' or schedulers' states that torch doesn't load with "
            f"weights_only=True ({why_refused(error.__cause__)}): convert with --weights-only"
        ) from error
    map_tensors(written, lambda tensor: places.append(stored_at(tensor, path)))
    if len(places) != len(tensors):
        raise CheckpointError(
            f"{weights.path} has tensors within other values than dicts, lists and tuples: convert it with "
            "--weights-only"
        )
    checksums: dict[int, int] = {}
    done: set[int] = set()
    with WeightsReader(weights) as reader, open(path, "r+b") as stream:
        for tensor, place in zip(tensors, places):
            if id(tensor) in done:
                continue
            done.add(id(tensor))
            assert place is not None
            start = place.chunks[0].start
            stream.seek(start)
            blocks = reader.blocks_of(tensor) if isinstance(tensor, StoredTensor) else iter([tensor.cpu()])
            write_parts(stream, _summed(map(raw_bytes, blocks), checksums, start))
        write_checksums(stream, checksums)
        sync(stream)


def _summed(blocks: Iterable[memoryview], checksums: dict[int, int], start: int) -> Iterator[memoryview]:
    checksums[start] = 0
    for block in blocks:
        checksums[start] = zlib.crc32(block, checksums[start])
        yield block


def _unbacked(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor whose memory is never written."""
    size_bytes = math.prod(shape) * dtype.itemsize
    if not size_bytes:
        return torch.empty(shape, dtype=dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    room = mmap.mmap(-1, size_bytes, flags=flags)
    return torch.frombuffer(room, dtype=torch.uint8).view(dtype).reshape(shape)
