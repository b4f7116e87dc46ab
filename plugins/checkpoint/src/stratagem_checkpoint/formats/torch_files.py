"""Files of `torch.save`: state dicts, and Lightning's `.ckpt`; tensors are read where they lie."""

from __future__ import annotations

import math
import mmap
import pickle
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import torch

from stratagem.errors import CheckpointError
from stratagem_checkpoint.formats.stored import (
    Piece,
    StoredTensor,
    Weights,
    WeightsReader,
    raw_bytes,
    sync,
    write_parts,
)
from stratagem_checkpoint.formats.zip_checksums import write_checksums
from stratagem_checkpoint.torch_private import checkpoint_offset

LIGHTNING_VERSION = "pytorch-lightning_version"
_OLDEST_LIGHTNING = "2.0.0"
"""What a written file says it is of: later ones migrate it, and nothing in it has changed since."""


class Inert:
    """What stands for an object of a class that isn't made: it keeps its arguments and does nothing."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        pass


def load_structure(file: str | BinaryIO, shown: str, ignore_objects: bool = False) -> Any:
    """Load what `torch.save` wrote, with tensors on the meta device that know where they lie in the file.

    Runs no code of the file: torch's `weights_only`.

    Args:
        file: path, or open and seekable.
        shown: how errors name it.
        ignore_objects: whether objects of other classes than tensors and containers become `Inert`; only of a path.

    Raises:
        CheckpointError: it isn't such a file, or has other objects.
    """
    known: list[Any] = []
    try:
        if ignore_objects and isinstance(file, str):
            foreign = torch.serialization.get_unsafe_globals_in_checkpoint(file)
            known = [(Inert, name) for name in foreign]
        with torch.serialization.safe_globals(known):
            return torch.load(file, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{shown} has more than tensors in it, which isn't loaded because that could run code: {_reason(error)}; "
            "save its state dict alone with the program that made it"
        ) from error
    except Exception as error:  # whatever a damaged file raises
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(
            f"{shown} is no file of torch.save, or is damaged ({reason}); use another"
        ) from error


def _reason(error: Exception) -> str:
    named = re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error))
    return f"it names {named[1]}" if named else "its pickle has another instruction than tensors need"


def stored_at(tensor: torch.Tensor, file: str, base: int = 0) -> StoredTensor | None:
    """Where a tensor of `load_structure` lies, as one piece; None where its file is of before torch 1.6.

    Args:
        tensor: plain.
        file: its path.
        base: where in the file torch.save began.
    """
    shape = tuple(tensor.shape)
    if not tensor.numel():
        return StoredTensor(tensor.dtype, shape, (Piece(file, 0, (0,) * len(shape), shape),))
    offset = checkpoint_offset(tensor)
    if offset is None:
        return None
    start = base + offset + int(tensor.storage_offset()) * tensor.dtype.itemsize
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return StoredTensor(tensor.dtype, shape, (Piece(file, start, (0,) * len(shape), shape, strides),))


def read_state_dict(path: str, key: str | None = None) -> Weights:
    """Open a file of torch.save that has a state dict, or a Lightning checkpoint.

    Args:
        path: of the file.
        key: of the entry that is the state dict; dots go further down.

    Raises:
        CheckpointError: something in the state dict is no tensor, or there is none.
    """
    content = load_structure(path, path)
    facts: dict[str, str] = {}
    left_out: list[str] = []
    name = "torch"
    if isinstance(content, Mapping) and LIGHTNING_VERSION in content:
        name = "lightning"
        key = "state_dict" if key is None else key
        facts = {fact: str(content[fact]) for fact in ("epoch", "global_step") if fact in content}
        others = sorted(str(each) for each in content if each not in (key, LIGHTNING_VERSION, *facts))
        left_out = [f"the run's {', '.join(others)}"] if others else []
    for part in key.split(".") if key else ():
        if not isinstance(content, Mapping) or part not in content:
            raise CheckpointError(f"{path} has no {key!r}: it has {_entries(content)}")
        content = content[part]
    tensors, aliases = collect(content, path)
    return Weights(path, name, tensors, aliases, left_out, facts)


def collect(content: Any, path: str) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a state dict as `load_structure` returns it, and which are tied.

    Raises:
        CheckpointError: something else is in it.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path} has a {type(content).__name__} where a state dict is to be; name it with --key"
        )
    tensors: dict[str, StoredTensor] = {}
    aliases: dict[str, str] = {}
    first: dict[StoredTensor, str] = {}
    for name, value in content.items():
        if (
            type(value) not in (torch.Tensor, torch.nn.Parameter)
            or value.layout != torch.strided
            or value.is_quantized
        ):
            raise CheckpointError(
                f"{str(name)[:80]!r} in {path} is a {type(value).__name__} and no plain tensor: name the entry with "
                f"the weights with --key (it has {_entries(content)})"
            )
        stored = stored_at(value, path)
        if stored is None:
            raise CheckpointError(
                f"{path} was written by torch before 1.6: load it, and save it again with this torch"
            )
        if value.numel() and stored in first:
            aliases[str(name)] = first[stored]
        else:
            first[stored] = str(name)
            tensors[str(name)] = stored
    return tensors, aliases


def _entries(content: Any) -> str:
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__}"
    names = [repr(name) for name in content]
    return (
        ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        if names
        else "nothing"
    )


def write_state_dict(weights: Weights, path: str) -> None:
    """Write a state dict as torch.save does; tied tensors share their memory when it is loaded."""
    write_filled(weights, path, {})


def write_lightning(weights: Weights, path: str) -> None:
    """Write a Lightning checkpoint with the weights alone."""
    step, epoch = weights.facts.get("global_step", "0"), weights.facts.get("epoch", "0")
    around = {
        "epoch": int(epoch),
        "global_step": int(step),
        LIGHTNING_VERSION: _OLDEST_LIGHTNING,
        "loops": {},
    }
    write_filled(weights, path, around, "state_dict")


def write_filled(weights: Weights, path: str, around: Mapping[str, Any], key: str | None = None) -> None:
    """Let torch.save leave room for the tensors, and fill it block by block.

    Args:
        weights: what to write.
        path: of a new file.
        around: what else is saved.
        key: of the entry beside `around` that is the state dict; None saves nothing but the state dict.
    """
    state_dict = OrderedDict((name, _unbacked(tensor)) for name, tensor in weights.tensors.items())
    state_dict.update({name: state_dict[kept] for name, kept in weights.aliases.items()})
    with torch.serialization.skip_data():
        torch.save(state_dict if key is None else {**around, key: state_dict}, path)
    del state_dict
    written = load_structure(path, path)
    room = {
        name: stored_at(tensor, path) for name, tensor in (written if key is None else written[key]).items()
    }
    checksums: dict[int, int] = {}
    with WeightsReader(weights) as reader, open(path, "r+b") as stream:
        for name in weights.tensors:
            place = room[name]
            assert place is not None
            start = place.pieces[0].start
            stream.seek(start)
            write_parts(stream, _summed(map(raw_bytes, reader.blocks(name)), checksums, start))
        write_checksums(stream, checksums)
        sync(stream)


def _summed(blocks: Iterable[memoryview], checksums: dict[int, int], start: int) -> Iterator[memoryview]:
    checksums[start] = 0
    for block in blocks:
        checksums[start] = zlib.crc32(block, checksums[start])
        yield block


def _unbacked(tensor: StoredTensor) -> torch.Tensor:
    """A tensor whose memory nobody has touched and nobody will."""
    if not math.prod(tensor.shape):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    room = mmap.mmap(-1, tensor.size_bytes, flags=flags)
    return torch.frombuffer(room, dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)
