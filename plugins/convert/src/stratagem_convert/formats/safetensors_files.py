"""Safetensors files: a single one, or several with an index, as in Hugging Face's folders."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from stratagem_checkpoint.checksums import CheckedFile
from stratagem_checkpoint.regular_files import require_regular
from stratagem_checkpoint.strict_json import HEADER_LIMIT_BYTES, Count, check_limit, parse_json

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import (
    Chunk,
    StoredTensor,
    Weights,
    WeightsReader,
    open_plain,
    raw_bytes,
    sync,
    write_parts,
)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CODES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: code for code, dtype in CODES.items()}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[Count]
    data_offsets: tuple[Count, Count]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def header_of(file: CheckedFile) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a safetensors file by name, in the file's order, and its metadata.

    Raises:
        CheckpointError: it isn't one, or the sizes of tensors don't match their positions.
    """
    if file.size_bytes < 8:
        raise file.damage("it is too short for a safetensors file")
    (length,) = struct.unpack("<Q", file.read(0, 8))
    if length > file.size_bytes - 8:
        raise file.damage("its header can't be read (it is longer than the file)")
    check_limit(length, HEADER_LIMIT_BYTES, f"the header of {file.shown}")
    try:
        content = msgspec.convert(parse_json(file.read(8, length)), dict[str, Any])
        metadata = msgspec.convert(content.pop("__metadata__", {}), dict[str, str])
        entries = msgspec.convert(content, dict[str, _Entry])
    except (msgspec.ValidationError, ValueError) as error:
        raise file.damage(f"its header can't be read ({error})") from error
    tensors = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in CODES:
            raise CheckpointError(
                f"{name!r} in {file.shown} has dtype {entry.dtype}; allowed are {', '.join(CODES)}"
            )
        shape, (start, end) = tuple(entry.shape), entry.data_offsets
        chunk = Chunk(file.shown, 8 + length + start, (0,) * len(shape), shape)
        tensor = StoredTensor(CODES[entry.dtype], shape, (chunk,))
        if end - start != tensor.size_bytes or 8 + length + end > file.size_bytes:
            raise file.damage(f"its header has {name!r} at bytes {start} to {end}")
        tensors[name] = tensor
    return tensors, metadata


def looks_like_one(path: str) -> bool:
    """Return whether a file begins as a safetensors file does, regardless of its name."""
    with open_plain(path) as file:
        start = bytes(file.read(0, min(9, file.size_bytes)))
        return (
            len(start) == 9 and start[8:] == b"{" and struct.unpack("<Q", start[:8])[0] <= file.size_bytes - 8
        )


def read_file(path: str) -> Weights:
    """Open one safetensors file."""
    with open_plain(path) as file:
        tensors, metadata = header_of(file)
    return Weights(path, "safetensors", tensors, _ties(metadata, tensors))


def read_folder(path: str) -> Weights:
    """Open a Hugging Face folder: `model.safetensors`, or several files with an index.

    Raises:
        CheckpointError: a file or a tensor in the index is missing.
    """
    index = os.path.join(path, INDEX)
    if not os.path.exists(index):
        found = read_file(os.path.join(path, SINGLE))
        return Weights(path, "huggingface", found.tensors, found.aliases)
    files = _weight_map(index)
    tensors: dict[str, StoredTensor] = {}
    ties: dict[str, str] = {}
    for name in dict.fromkeys(files.values()):
        if os.path.basename(name) != name:
            raise CheckpointError(f"{index} is damaged: it names {name!r} outside of its folder; use another")
        with open_plain(os.path.join(path, name)) as file:
            of_file, metadata = header_of(file)
        ties.update(metadata)
        tensors.update({key: tensor for key, tensor in of_file.items() if files.get(key) == name})
    missing = sorted(files.keys() - tensors.keys())
    if missing:
        raise CheckpointError(
            f"{path} is incomplete: {files[missing[0]]} has no tensor {missing[0]!r}, which {INDEX} names; "
            "use another"
        )
    return Weights(path, "huggingface", tensors, _ties(ties, tensors))


def _weight_map(index: str) -> dict[str, str]:
    with open_plain(index) as file:
        check_limit(file.size_bytes, HEADER_LIMIT_BYTES, file.shown)
        try:
            return msgspec.convert(parse_json(file.read(0, file.size_bytes)), _Index).weight_map
        except (msgspec.ValidationError, ValueError) as error:
            raise file.damage(error) from error


def _ties(metadata: Mapping[str, str], tensors: Mapping[str, object]) -> dict[str, str]:
    """Return ties in the form of safetensors' `save_model`: name of a tied tensor → name of the one in the file."""
    return {name: kept for name, kept in metadata.items() if kept in tensors and name not in tensors}


def write_file(weights: Weights, path: str) -> None:
    """Write one safetensors file. Ties are in its metadata, in the form of safetensors' `save_model`."""
    with WeightsReader(weights) as reader:
        _write(reader, list(weights.tensors), path, weights.aliases)


def write_folder(weights: Weights, path: str, shard_bytes: int, config: str | None) -> None:
    """Write a folder that transformers loads.

    Args:
        weights: weights of the model, with its names.
        path: an existing folder.
        shard_bytes: maximum size of a file with several tensors.
        config: a folder whose config.json and tokenizer files are copied.
    """
    copy_small_files(config, path)
    files = shards(weights, shard_bytes)
    with WeightsReader(weights) as reader:
        for file, names in files.items():
            _write(reader, names, os.path.join(path, file), ties_within(weights, names))
    write_index(weights, files, path)


def ties_within(weights: Weights, names: Sequence[str]) -> dict[str, str]:
    """Return the ties to tensors in the file of `names`. They are written to its metadata."""
    return {name: kept for name, kept in weights.aliases.items() if kept in names}


def write_index(weights: Weights, files: Mapping[str, Sequence[str]], path: str) -> None:
    """Write the index of the folder `path`, which maps tensors to files, if there are several files."""
    if len(files) == 1:
        return
    found = {name: file for file, names in files.items() for name in names}
    index = {"metadata": {"total_size": weights.size_bytes}, "weight_map": dict(sorted(found.items()))}
    with open(os.path.join(path, INDEX), "x", encoding="utf-8") as stream:
        stream.write(json.dumps(index, indent=2) + "\n")


def copy_small_files(config: str | None, path: str) -> None:
    """Copy config.json and tokenizer files from the folder `config`, if given."""
    for name in _small_files(config):
        require_regular(os.path.join(str(config), name))
        shutil.copyfile(os.path.join(str(config), name), os.path.join(path, name))


def _small_files(config: str | None) -> Sequence[str]:
    """Return the names of configuration and tokenizer files, which have no tensors."""
    if config is None:
        return ()
    endings = (".json", ".txt", ".model", ".jinja")
    try:
        names = [name for name in sorted(os.listdir(config)) if name.endswith(endings)]
    except OSError as error:
        raise CheckpointError(
            f"{config} can't be read: {error.strerror}; pass a folder with a config.json"
        ) from error
    if "config.json" not in names:
        raise CheckpointError(f"{config} has no config.json: pass a folder that save_pretrained has written")
    return [name for name in names if not name.endswith(".index.json")]


def shards(weights: Weights, shard_bytes: int) -> dict[str, list[str]]:
    """Return name of a file → names of its tensors. Only files with a single tensor may be longer than the limit."""
    found: list[list[str]] = [[]]
    length = 0
    for name, tensor in weights.tensors.items():
        if found[-1] and length + tensor.size_bytes > shard_bytes:
            found.append([])
            length = 0
        found[-1].append(name)
        length += tensor.size_bytes
    if len(found) == 1:
        return {SINGLE: found[0]}
    return {
        f"model-{number:05d}-of-{len(found):05d}.safetensors": names for number, names in enumerate(found, 1)
    }


def _write(reader: WeightsReader, names: Sequence[str], path: str, ties: Mapping[str, str]) -> None:
    with open(path, "xb") as stream:
        write_parts(stream, safetensors_bytes(reader, names, {**ties, "format": "pt"}))
        sync(stream)


def safetensors_bytes(
    reader: WeightsReader,
    names: Sequence[str],
    metadata: Mapping[str, str],
    as_real: bool = False,
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file.

    Args:
        reader: reader of the tensors.
        names: names of the tensors of this file.
        metadata: metadata for its header.
        as_real: whether to store complex numbers as two real ones in a last dim, as our own checkpoints do.

    Raises:
        CheckpointError: the format doesn't support a dtype.
    """
    tensors = {name: reader.weights.stored(name) for name in names}
    header, starts = encode_header(tensors, metadata, as_real)
    yield header
    for name in starts:
        for block in reader.blocks(name):
            yield raw_bytes(block)


def encode_header(
    tensors: Mapping[str, StoredTensor],
    metadata: Mapping[str, str],
    as_real: bool = False,
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a safetensors file, and the byte at which each tensor begins, in order.

    Raises:
        CheckpointError: the format doesn't support a dtype.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    starts: dict[str, int] = {}
    end = 0
    # Wide elements come first, so that every tensor is aligned. The format's reference implementation does this, too.
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        dtype, shape = tensors[name].dtype, list(tensors[name].shape)
        if as_real and dtype.is_complex:
            dtype, shape = dtype.to_real(), [*shape, 2]
        if dtype not in _NAMES:
            raise CheckpointError(
                f"{name!r} has dtype {dtype}, which safetensors files can't hold: convert it before"
            )
        starts[name], end = end, end + tensors[name].size_bytes
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [starts[name], end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, {
        name: 8 + len(text) + start for name, start in starts.items()
    }
