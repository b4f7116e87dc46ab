"""Folders of torch.distributed.checkpoint. Their pickled metadata is read without running code of it."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, cast

import torch
from stratagem_checkpoint.regular_files import open_regular
from stratagem_checkpoint.strict_json import HEADER_LIMIT_BYTES, check_limit
from stratagem_checkpoint.tiling import is_tiled

from stratagem.errors import CheckpointError
from stratagem_convert.formats.dcp_training import MODEL, OPTIM, leaves, training_of
from stratagem_convert.formats.stored import (
    Chunk,
    StoredTensor,
    Weights,
    WeightsReader,
    block_rows,
    open_plain,
    sync,
)
from stratagem_convert.formats.structure import map_tensors
from stratagem_convert.formats.torch_files import load_structure, stored_at
from stratagem_convert.torch_private import DCP_METADATA, storage_info

METADATA = ".metadata"
_FILE = "__0_0.distcp"
_CHUNK_BYTES = 8 * 2**20
"""Size of the chunks to write. The metadata has an entry for each."""
_PLAIN = {("collections", "OrderedDict"), ("torch", "Size")}
_PATHS = {"PosixPath": PurePosixPath, "WindowsPath": PureWindowsPath}


class _RefusedError(Exception):
    pass


class _MetadataUnpickler(pickle.Unpickler):
    """Constructs the records of DCP's metadata, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "pathlib" and name in _PATHS:
            return _PATHS[name]
        if (module, name) in _PLAIN or f"{module}.{name}" in DCP_METADATA:
            return getattr(import_module(module), name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise _RefusedError(f"{module}.{name}")


class FileView(io.RawIOBase):
    """A range of an open file, as a file object."""

    def __init__(self, stream: BinaryIO, start: int, size: int) -> None:
        self._stream, self._start, self._size, self._at = stream, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        self._stream.seek(self._start + self._at)
        count = self._stream.readinto(view)  # type: ignore[attr-defined]  # raw and buffered readers have it; BinaryIO doesn't declare it
        self._at += count
        return int(count)


def read_folder(path: str, key: str | None = None) -> Weights:
    """Open a DCP folder.

    Args:
        path: path of the folder.
        key: read only entries called `key.…`, with this prefix removed.

    Raises:
        CheckpointError: the metadata has other objects, something under `key` isn't a tensor, or a file is damaged.
    """
    metadata = _metadata(path)
    if key is None and _has_training(metadata):
        key = MODEL
    prefix = f"{key}." if key else ""
    entries = {
        name: entry for name, entry in metadata.state_dict_metadata.items() if str(name).startswith(prefix)
    }
    if not entries:
        tops = sorted({str(name).split(".")[0] for name in metadata.state_dict_metadata})
        raise CheckpointError(f"{path} has no {key!r}: it has {', '.join(tops[:6]) or 'nothing'}")
    places: dict[tuple[str, tuple[int, ...]], Any] = {
        (index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()
    }
    tensors = {}
    for name, entry in entries.items():
        if not hasattr(entry, "chunks"):
            tops = sorted({each.split(".")[0] for each in map(str, metadata.state_dict_metadata)})
            raise CheckpointError(
                f"{name!r} in {path} isn't a tensor: name the entry with the weights with --key, of {', '.join(tops)}"
            )
        tensors[name.removeprefix(prefix)] = _tensor(path, name, entry, places)

    def value_of(name: str) -> Any:
        entry = metadata.state_dict_metadata[name]
        return _tensor(path, name, entry, places) if hasattr(entry, "chunks") else _value(path, name, places)

    training = None
    paths = metadata.planner_data
    if key is not None and isinstance(paths, Mapping) and paths.keys() == metadata.state_dict_metadata.keys():
        training = training_of(paths, tuple(key.split(".")[:-1]), value_of, path)
    others = len(metadata.state_dict_metadata) - len(entries)
    left_out = [f"{others} entries outside of {key!r}"] if others and training is None else []
    return Weights(path, "dcp", tensors, left_out=left_out, training=training)


def _has_training(metadata: Any) -> bool:
    """Return whether it has weights and an optimizer, under the names in torch's documentation."""
    names = [str(name) for name in metadata.state_dict_metadata]
    return all(
        any(name.startswith(prefix) for name in names) for prefix in (f"{MODEL}.", f"{OPTIM}.param_groups.")
    )


def _metadata(path: str) -> Any:
    file_name = os.path.join(path, METADATA)
    with open_plain(file_name) as file:
        check_limit(file.size_bytes, HEADER_LIMIT_BYTES, file_name)
        try:
            metadata = _MetadataUnpickler(io.BytesIO(file.read(0, file.size_bytes))).load()
            if not isinstance(metadata.state_dict_metadata, Mapping) or not isinstance(
                metadata.storage_data, Mapping
            ):
                raise TypeError("it has no tensors")
        except _RefusedError as error:
            raise CheckpointError(
                f"{file_name} names {error}, which isn't loaded because that could run code: use a checkpoint that "
                "torch.distributed.checkpoint has written"
            ) from error
        except Exception as error:  # a damaged pickle may raise anything
            raise file.damage(f"it is not metadata of torch.distributed.checkpoint ({error})") from error
    return metadata


def _tensor(
    path: str, name: str, entry: Any, places: Mapping[tuple[str, tuple[int, ...]], Any]
) -> StoredTensor:
    dtype, shape = entry.properties.dtype, tuple(entry.size)
    chunks: list[Chunk] = []
    for chunk in entry.chunks:
        offsets, lengths = tuple(chunk.offsets), tuple(chunk.sizes)
        info = places.get((name, offsets))
        if 0 in lengths:
            continue
        if info is None or os.path.basename(info.relative_path) != info.relative_path:
            raise CheckpointError(f"{path} is damaged: it has no file for {name!r} at {offsets}; use another")
        if getattr(info, "transform_descriptors", None):
            raise CheckpointError(
                f"{name!r} in {path} is stored through {info.transform_descriptors}: save it without such extensions"
            )
        chunks.append(_chunk(os.path.join(path, info.relative_path), info, name, dtype, offsets, lengths))
    boxes = [(each.offsets, tuple(o + n for o, n in zip(each.offsets, each.lengths))) for each in chunks]
    if 0 in shape:
        return StoredTensor(dtype, shape, (Chunk(path, 0, (0,) * len(shape), shape),))
    if not is_tiled(shape, boxes):
        raise CheckpointError(f"{path} is damaged: the chunks of {name!r} don't cover it; use another")
    return StoredTensor(dtype, shape, tuple(chunks))


def _chunk(
    file: str, info: Any, name: str, dtype: torch.dtype, offsets: tuple[int, ...], lengths: tuple[int, ...]
) -> Chunk:
    tensor = _loaded(file, info)
    found = stored_at(tensor, file, info.offset) if isinstance(tensor, torch.Tensor) else None
    if found is None or (found.dtype, found.shape) != (dtype, lengths):
        raise CheckpointError(f"{file} is damaged: it has another value instead of {name!r}; use another")
    return found.chunks[0]._replace(offsets=offsets)


def _value(path: str, name: str, places: Mapping[tuple[str, tuple[int, ...]], Any]) -> Any:
    """Return a value other than a tensor, such as an optimizer's setting. Tensors in it stay in their file."""
    info = places.get((name, ()))
    if info is None or os.path.basename(info.relative_path) != info.relative_path:
        raise CheckpointError(f"{path} is damaged: it has no file for {name!r}; use another")
    file = os.path.join(path, info.relative_path)
    return map_tensors(_loaded(file, info), lambda tensor: stored_at(tensor, file, info.offset))


def _loaded(file: str, info: Any) -> Any:
    try:
        with open_regular(file) as stream:
            return load_structure(cast("BinaryIO", FileView(stream, info.offset, info.length)), file)
    except OSError as error:
        raise CheckpointError(f"{file} can't be read: {error.strerror}; the folder is incomplete") from error


def write_folder(weights: Weights, path: str) -> None:
    """Write a folder that DCP can load, in chunks of some rows. DCP's own writer would hold all tensors in memory."""
    from torch.distributed.checkpoint import metadata as records

    described: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    paths: dict[str, Any] = {}
    with WeightsReader(weights) as reader, open(os.path.join(path, _FILE), "xb") as stream:
        for way, value in leaves(weights):
            name = ".".join(map(str, way))
            paths[name] = way
            if isinstance(value, torch.Tensor):
                described[name], chunks = _saved(stream, name, tuple(value.shape), value.dtype, [(0, value)])
            elif isinstance(value, StoredTensor):
                blocks = _chunks(reader, value)
                described[name], chunks = _saved(stream, name, value.shape, value.dtype, blocks)
            else:
                at = stream.tell()
                torch.save(value, stream)
                described[name] = records.BytesStorageMetadata()
                chunks = {records.MetadataIndex(name): storage_info(_FILE, at, stream.tell() - at)}
            stored.update(chunks)
        sync(stream)
    whole = records.Metadata(described, paths, stored, records.StorageMeta())
    with open(os.path.join(path, METADATA), "xb") as stream:
        pickle.dump(whole, stream)
        sync(stream)


def _saved(
    stream: BinaryIO,
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    blocks: Iterable[tuple[int, torch.Tensor]],
) -> tuple[Any, dict[Any, Any]]:
    """Write a tensor by blocks of rows; return its record, and where each block is."""
    from torch.distributed.checkpoint import metadata as records

    chunks: list[Any] = []
    stored: dict[Any, Any] = {}
    for begin, block in blocks:
        at = stream.tell()
        torch.save(block.clone(), stream)
        offsets = torch.Size([begin, *[0] * (len(shape) - 1)][: len(shape)])
        index = records.MetadataIndex(name, offsets, len(chunks))
        stored[index] = storage_info(_FILE, at, stream.tell() - at)
        chunks.append(records.ChunkStorageMetadata(offsets, block.shape))
    properties = records.TensorProperties(dtype=dtype)
    return records.TensorStorageMetadata(properties, torch.Size(shape), chunks), stored


def _chunks(reader: WeightsReader, tensor: StoredTensor) -> Iterator[tuple[int, torch.Tensor]]:
    if not tensor.size_bytes:
        yield 0, torch.empty(tensor.shape, dtype=tensor.dtype)
    elif not tensor.shape:
        yield 0, reader.rows(tensor, 0, 1).reshape(())
    else:
        for begin, end in block_rows([tensor], _CHUNK_BYTES):
            yield begin, reader.rows(tensor, begin, end)
