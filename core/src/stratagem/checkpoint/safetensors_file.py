"""Writing safetensors files piece by piece, and reading parts of a tensor from them.

The format (https://huggingface.co/docs/safetensors) is a length, a JSON header and raw bytes. The
library's own writer wants all tensors of a file in host memory at once and doesn't sync; its reader
maps local files only. Both are avoided here; what is written is what that library reads.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import torch
from torch.nn.parameter import is_lazy

from stratagem.errors import CheckpointError

BLOCK_BYTES = 64 * 2**20
"""How much of a piece is read at a time."""

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

Piece = tuple[torch.dtype, Sequence[int], Callable[[], torch.Tensor]]
"""Dtype, shape, and what makes the tensor when its turn to be written comes."""


def refusal(tensor: torch.Tensor) -> str | None:
    """Why `tensor` can't be in a checkpoint, as "has no values"; None where it can."""
    if is_lazy(tensor):
        return "is uninitialized; run a forward first"
    if tensor.dtype not in _STORED and tensor.dtype not in _PARTS:
        return f"has dtype {tensor.dtype}; allowed are {', '.join(DTYPES)}"
    if tensor.layout != torch.strided:
        return f"has layout {tensor.layout}; convert it with to_dense()"
    if tensor.device.type == "meta":
        return "is on the meta device and has no values; materialize it first"
    return None


def encode_file(pieces: Mapping[str, Piece]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file: its header, then one piece after the other.

    Args:
        pieces: by their name in the file. Tensors may be on any device and of any strides; at most one
            is held in host memory at a time.
    """
    # Wide elements first keeps every piece aligned, as the format's reference implementation does.
    names = sorted(pieces, key=lambda name: (-pieces[name][0].itemsize, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        dtype, shape, _ = pieces[name]
        start, end = end, end + dtype.itemsize * math.prod(shape)
        stored = _PARTS.get(dtype, dtype)
        stored_shape = [*shape, 2] if dtype.is_complex else list(shape)
        header[name] = {"dtype": _STORED[stored], "shape": stored_shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        dtype, shape, make = pieces[name]
        tensor = make().detach()
        if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
            raise CheckpointError(
                f"tensor {name!r} changed from {dtype} {tuple(shape)} while it was being saved"
            )
        yield _raw(tensor)


class TensorFile:
    """An open safetensors file.

    Args:
        stream: seekable.
        shown: how errors name the file.

    Raises:
        CheckpointError: it isn't a whole safetensors file.
    """

    def __init__(self, stream: BinaryIO, shown: str) -> None:
        self._stream = stream
        self._shown = shown
        try:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > stream.seek(0, 2) - 8:
                raise ValueError("its header is longer than the file")
            stream.seek(8)
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            self._data = 8 + length
            self._header: dict[str, tuple[str, list[int], int]] = {
                name: (entry["dtype"], entry["shape"], entry["data_offsets"][0])
                for name, entry in header.items()
            }
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"{shown} is damaged: its header can't be read ({error}); use another checkpoint"
            ) from error

    def read(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Return the whole piece `name`, on the CPU."""
        out = torch.empty(list(shape), dtype=dtype)
        self.read_into(out, name, dtype, shape, [0] * len(shape))
        return out

    def read_into(
        self, out: torch.Tensor, name: str, dtype: torch.dtype, shape: Sequence[int], offsets: Sequence[int]
    ) -> None:
        """Fill `out` with the part of a piece that begins at `offsets` and has the shape of `out`.

        Rows (along dim 0) outside that part aren't read, and at most `BLOCK_BYTES` or one row are held
        in host memory. Device and dtype of `out` are free.

        Args:
            out: any device, dtype and strides; written in place.
            name: of the piece in the file.
            dtype: of the piece.
            shape: of the whole piece.
            offsets: one per dim.

        Raises:
            CheckpointError: the file has no such piece.
        """
        stored, parts = _PARTS.get(dtype, dtype), [2] if dtype.is_complex else []
        code, stored_shape, start = self._header.get(name, ("", [], 0))
        if code != _STORED[stored] or stored_shape != [*shape, *parts]:
            raise CheckpointError(
                f"{self._shown} is damaged: it has no piece {name!r} of {dtype} {tuple(shape)}; "
                "use another checkpoint"
            )
        if out.numel() == 0:
            return
        if not shape:
            out, shape, offsets = out.unsqueeze(0), [1], [0]
        row_shape = [*shape[1:], *parts]
        row_bytes = stored.itemsize * math.prod(row_shape)
        rows_at_once = max(1, BLOCK_BYTES // row_bytes)
        for row in range(0, out.shape[0], rows_at_once):
            rows = min(rows_at_once, out.shape[0] - row)
            buffer = bytearray(rows * row_bytes)
            self._stream.seek(self._data + start + (offsets[0] + row) * row_bytes)
            self._fill(buffer, name)
            block = torch.frombuffer(buffer, dtype=stored).reshape(rows, *row_shape)
            if dtype.is_complex:
                block = torch.view_as_complex(block)
            for dim in range(1, len(shape)):
                block = block.narrow(dim, offsets[dim], out.shape[dim])
            out.narrow(0, row, rows).copy_(block)

    def _fill(self, buffer: bytearray, name: str) -> None:
        view = memoryview(buffer)
        while view:
            part = self._stream.read(len(view))
            if not part:
                raise CheckpointError(
                    f"{self._shown} is truncated: it ends within the piece {name!r}; use another checkpoint"
                )
            view[: len(part)] = part
            view = view[len(part) :]


def _raw(tensor: torch.Tensor) -> memoryview:
    """The elements' bytes in row-major order, on the host."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.resolve_neg().to("cpu").contiguous().reshape(-1)
    if flat.numel() == 1:
        # A single element counts as contiguous whatever its stride, but not for view().
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
