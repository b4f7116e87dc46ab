"""Writes safetensors files chunk by chunk, and reads parts of tensors from them.

The format (https://huggingface.co/docs/safetensors) is a length, a JSON header and raw bytes. The
library's own writer wants all tensors of a file in host memory at once and doesn't sync; its reader
maps local files only. Both are avoided here; what is written is what that library reads.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch.nn.parameter import is_lazy

from stratagem.errors import CheckpointError
from stratagem_checkpoint.checksums import CheckedFile
from stratagem_checkpoint.strict_json import HEADER_LIMIT_BYTES, Count, check_limit, parse_json

BLOCK_BYTES = 64 * 2**20
"""How much of a chunk is read at a time."""

_STORED: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
# Real and imaginary part as a last dim of size 2: few readers of the format know complex numbers.
_PARTS: Mapping[torch.dtype, torch.dtype] = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
DTYPES: Mapping[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype for dtype in (*_STORED, *_PARTS)
}
"""All dtypes that can be in a checkpoint, by name."""

_SIZES: Mapping[str, int] = {code: dtype.itemsize for dtype, code in _STORED.items()}

Chunk = tuple[torch.dtype, Sequence[int], Callable[[], torch.Tensor]]
"""Dtype, shape, and a function that returns the tensor when it is about to be written."""


class _Place(NamedTuple):
    """A chunk as the header has it; offsets are from the end of the header."""

    code: str
    shape: list[int]
    start: int
    end: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[Count]
    data_offsets: tuple[Count, Count]


def refusal(tensor: torch.Tensor) -> str | None:
    """Return why `tensor` can't be saved, as "has no values"; None if it can."""
    if is_lazy(tensor):
        return "is uninitialized; run a forward first"
    if tensor.dtype not in _STORED and tensor.dtype not in _PARTS:
        return f"has dtype {tensor.dtype}; allowed are {', '.join(DTYPES)}"
    if tensor.layout != torch.strided:
        return f"has layout {tensor.layout}; convert it with to_dense()"
    if tensor.is_meta:
        return "is on the meta device and has no values; materialize it first"
    return None


def encode_file(chunks: Mapping[str, Chunk]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file: its header, then one chunk after the other.

    Args:
        chunks: by their name in the file. Tensors may be on any device and of any strides; at most one
            is held in host memory at a time.
    """
    header, placed = encode_header(chunks)
    yield header
    for name in placed:
        yield _raw(made(name, chunks[name]))


def encode_header(chunks: Mapping[str, Chunk]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the header of a safetensors file, and each chunk's start and end after the header."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    placed = _placed({name: (dtype, shape) for name, (dtype, shape, _) in chunks.items()})
    for name, (code, stored_shape, start, end) in placed.items():
        header[name] = {"dtype": code, "shape": stored_shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    spans = {name: (place.start, place.end) for name, place in placed.items()}
    return struct.pack("<Q", len(text)) + text, spans


def made(name: str, chunk: Chunk) -> torch.Tensor:
    """Return the tensor of a chunk that is about to be written.

    Raises:
        CheckpointError: its dtype or shape has changed.
    """
    dtype, shape, make = chunk
    tensor = make().detach()
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        raise CheckpointError(f"tensor {name!r} changed from {dtype} {tuple(shape)} while it was being saved")
    return tensor


def _placed(chunks: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> dict[str, _Place]:
    """Where each chunk is in a file that has these, in the order of the file."""
    placed: dict[str, _Place] = {}
    end = 0
    # Wide elements first keeps every chunk aligned, as the format's reference implementation does.
    for name in sorted(chunks, key=lambda name: (-chunks[name][0].itemsize, name)):
        dtype, shape = chunks[name]
        start, end = end, end + dtype.itemsize * math.prod(shape)
        parts = [2] if dtype.is_complex else []
        placed[name] = _Place(_STORED[_PARTS.get(dtype, dtype)], [*shape, *parts], start, end)
    return placed


class TensorFile:
    """An open safetensors file.

    Args:
        file: open.
        chunks: all that it has, by name; None takes whatever there is, if it fills the file exactly.

    Raises:
        CheckpointError: it isn't a whole safetensors file, or not of these chunks.
    """

    def __init__(
        self, file: CheckedFile, chunks: Mapping[str, tuple[torch.dtype, Sequence[int]]] | None = None
    ) -> None:
        self._file = file
        (length,) = struct.unpack("<Q", file.read(0, 8))
        if length > file.size_bytes - 8:
            raise file.damage("its header can't be read (it is longer than the file)")
        check_limit(length, HEADER_LIMIT_BYTES, f"the header of {file.shown}")
        self._data = 8 + length
        try:
            header = msgspec.convert(parse_json(file.read(8, length)), dict[str, Any])
            header.pop("__metadata__", None)
            entries = msgspec.convert(header, dict[str, _Entry])
        except (msgspec.ValidationError, ValueError) as error:
            raise file.damage(f"its header can't be read ({error})") from error
        self._placed = {name: _Place(e.dtype, e.shape, *e.data_offsets) for name, e in entries.items()}
        if chunks is not None and self._placed != _placed(chunks):
            raise file.damage("its header isn't that of the chunks which the manifest names")
        self._check_filled()

    def _check_filled(self) -> None:
        end = 0
        for name, place in sorted(self._placed.items(), key=lambda item: item[1][2:]):
            size = _SIZES.get(place.code, -1) * math.prod(place.shape)
            if place.start != end or place.end - place.start != size:
                raise self._file.damage(f"its header has {name!r} at bytes {place.start} to {place.end}")
            end = place.end
        if self._data + end != self._file.size_bytes:
            raise self._file.damage(f"its header has {end} bytes of data")

    def start(self, name: str) -> int:
        """At which byte of the data the chunk `name` begins; 0 for one that isn't there."""
        return self._placed[name].start if name in self._placed else 0

    def read(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Return the whole chunk `name`, on the CPU; raises as `read_into`."""
        self._find(name, dtype, shape)
        out = torch.empty(list(shape), dtype=dtype)
        self.read_into(out, name, dtype, shape, [0] * len(shape))
        return out

    def read_into(
        self, out: torch.Tensor, name: str, dtype: torch.dtype, shape: Sequence[int], offsets: Sequence[int]
    ) -> None:
        """Fill `out` with the part of a chunk that begins at `offsets` and has the shape of `out`.

        Rows (along dim 0) outside that part aren't read, and at most `BLOCK_BYTES` or one row are held
        in host memory. Device and dtype of `out` are free.

        Args:
            out: any device, dtype and strides; written in place.
            name: of the chunk in the file.
            dtype: of the chunk.
            shape: of the whole chunk.
            offsets: one per dim.

        Raises:
            CheckpointError: the file has no such chunk.
        """
        place = self._find(name, dtype, shape)
        stored, parts = _PARTS.get(dtype, dtype), [2] if dtype.is_complex else []
        if out.numel() == 0:
            return
        if not shape:
            out, shape, offsets = out.unsqueeze(0), [1], [0]
        row_shape = [*shape[1:], *parts]
        row_bytes = stored.itemsize * math.prod(row_shape)
        rows_at_once = max(1, BLOCK_BYTES // row_bytes)
        for row in range(0, out.shape[0], rows_at_once):
            rows = min(rows_at_once, out.shape[0] - row)
            start = self._data + place.start + (offsets[0] + row) * row_bytes
            buffer = self._file.read(start, rows * row_bytes)
            block = torch.frombuffer(buffer, dtype=stored).reshape(rows, *row_shape)
            if dtype.is_complex:
                # A copy: numbers of 16 bytes begin at multiples of 16 in memory, but of 8 in a file.
                block = torch.view_as_complex(block.clone())
            for dim in range(1, len(shape)):
                block = block.narrow(dim, offsets[dim], out.shape[dim])
            out.narrow(0, row, rows).copy_(block)

    def _find(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> _Place:
        place = self._placed.get(name)
        parts = [2] if dtype.is_complex else []
        if place is None or place[:2] != (_STORED[_PARTS.get(dtype, dtype)], [*shape, *parts]):
            raise self._file.damage(f"it has no chunk {name!r} of {dtype} {tuple(shape)}")
        return place


def _raw(tensor: torch.Tensor) -> memoryview:
    """The elements' bytes in row-major order, on the host."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.resolve_neg().to("cpu").contiguous().reshape(-1)
    if flat.numel() == 1:
        # A single element counts as contiguous whatever its stride, but not for view().
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
