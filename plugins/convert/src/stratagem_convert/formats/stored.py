"""Tensors in files of any format, read by blocks of rows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import torch
from stratagem_checkpoint.checksums import CHECKED_BYTES, CheckedFile
from stratagem_checkpoint.growing_file import GrowingFile
from stratagem_checkpoint.regular_files import open_regular

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from stratagem_convert.formats.training import Training

BLOCK_BYTES = 2 * 2**20
"""Size of the blocks in which tensors are read; at least one row."""


class Chunk(NamedTuple):
    """A box of a tensor, stored at one position of a file."""

    file: str
    start: int
    """Index of its first byte in the file."""
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    """Strides in elements; None for row-major order."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in files.

    Attributes:
        dtype: dtype in the files.
        shape: shape of the whole tensor.
        chunks: boxes that cover it.
        flat: whether the chunks are ranges of the flattened tensor.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    flat: bool = False

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


T = TypeVar("T")
OpenFile = Callable[[str], AbstractContextManager[CheckedFile]]
_OPEN_FILES = 64


@dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint in some format.

    Attributes:
        path: name in error messages.
        format: name of the format.
        tensors: name in the module → tensor, in order.
        aliases: names of tied tensors → the one in `tensors` that has the values.
        left_out: what else is in the checkpoint and isn't converted, as clauses.
        facts: other facts, such as {"step": "120"}.
        open_file: opens one of its files; by default as a file without checksums.
        training: what a run needs to resume, besides the weights. Its tensors are in the same files.
    """

    path: str
    format: str
    tensors: Mapping[str, StoredTensor]
    aliases: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    open_file: OpenFile | None = None
    training: Training | None = None

    @property
    def size_bytes(self) -> int:
        """Size of all tensors; tied ones count once."""
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    def names(self) -> list[str]:
        """Return all names, including those of tied tensors."""
        return [*self.tensors, *self.aliases]

    def stored(self, name: str) -> StoredTensor:
        """Return the tensor called `name`; for a tied one, the tensor that has the values."""
        return self.tensors[self.aliases.get(name, name)]

    def renamed(self, rename: Callable[[str], str]) -> Weights:
        """Return the same tensors with the names that `rename` returns.

        Raises:
            CheckpointError: two of them would have the same name.
        """
        names: dict[str, str] = {}
        for name in self.names():
            new = rename(name)
            if not new or new in names:
                other = f", as {names[new]!r} is" if new in names else ""
                raise CheckpointError(
                    f"{name!r} in {self.path} would be called {new!r}{other}: rename to names that differ"
                )
            names[new] = name
        return replace(
            self,
            tensors={rename(name): tensor for name, tensor in self.tensors.items()},
            aliases={rename(name): rename(target) for name, target in self.aliases.items()},
            training=self.training and self.training.renamed(rename),
        )


class WeightsReader:
    """Reads blocks of rows of `Weights`. A context manager, which closes the files."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._stack = ExitStack()
        self._files: dict[str, CheckedFile] = {}

    def __enter__(self) -> WeightsReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """Yield a tensor's rows in order, in blocks. A 0-dim tensor is a single row."""
        return self.blocks_of(self.weights.stored(name))

    def blocks_of(self, tensor: StoredTensor) -> Iterator[torch.Tensor]:
        """Yield blocks of a tensor in one of the files; see `blocks`."""
        for begin, end in block_rows([tensor]):
            yield self.rows(tensor, begin, end)

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole tensor on the CPU."""
        return self.read(self.weights.stored(name))

    def read(self, tensor: StoredTensor) -> torch.Tensor:
        """Return a whole tensor in one of the files, on the CPU."""
        return self.rows(tensor, 0, tensor.shape[0] if tensor.shape else 1).reshape(tensor.shape)

    def rows(self, tensor: StoredTensor, begin: int, end: int) -> torch.Tensor:
        """Return rows `begin` to `end` of a tensor on the CPU."""
        shape = tensor.shape or (1,)
        wanted = (end - begin, *shape[1:])
        row = math.prod(shape[1:])
        if tensor.flat:
            out = torch.empty(wanted, dtype=tensor.dtype)
            self._fill(out.view(-1), tensor.dtype, tensor.chunks, begin * row)
            return out
        if len(tensor.chunks) == 1:  # the most common case, which needs no copy
            first = self._box(tensor.dtype, tensor.chunks[0], shape, begin, end)
            return first.reshape(wanted)
        out = torch.empty(wanted, dtype=tensor.dtype)
        for chunk in tensor.chunks:
            if chunk.offsets[0] < end and chunk.offsets[0] + chunk.lengths[0] > begin:
                first_row, last_row = (
                    max(begin, chunk.offsets[0]),
                    min(end, chunk.offsets[0] + chunk.lengths[0]),
                )
                target = out.narrow(0, first_row - begin, last_row - first_row)
                for dim in range(1, len(shape)):
                    target = target.narrow(dim, chunk.offsets[dim], chunk.lengths[dim])
                own = first_row - chunk.offsets[0]
                target.copy_(self._box(tensor.dtype, chunk, chunk.lengths, own, own + last_row - first_row))
        return out

    def _fill(self, out: torch.Tensor, dtype: torch.dtype, chunks: Sequence[Chunk], begin: int) -> None:
        end = begin + out.numel()
        for chunk in chunks:
            first, last = max(begin, chunk.offsets[0]), min(end, chunk.offsets[0] + chunk.lengths[0])
            if first < last:
                own = first - chunk.offsets[0]
                values = self._box(dtype, chunk, chunk.lengths, own, own + last - first)
                out[first - begin : last - begin] = values

    def _box(
        self, dtype: torch.dtype, chunk: Chunk, lengths: Sequence[int], begin: int, end: int
    ) -> torch.Tensor:
        """Return rows of one chunk."""
        row = math.prod(lengths[1:])
        shape = (end - begin, *lengths[1:])
        if not row or begin == end:
            return torch.empty(shape, dtype=dtype)
        if chunk.strides is not None:
            span = 1 + sum((length - 1) * stride for length, stride in zip(lengths, chunk.strides))
            values = self._values(chunk.file, chunk.start, span, dtype)
            return values.as_strided(list(lengths), chunk.strides)[begin:end]
        start = chunk.start + begin * row * dtype.itemsize
        return self._values(chunk.file, start, (end - begin) * row, dtype).reshape(shape)

    def _values(self, file: str, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        raw = torch.frombuffer(self._file(file).read(start, count * dtype.itemsize), dtype=torch.uint8)
        return (raw.clone() if raw.data_ptr() % dtype.itemsize else raw).view(dtype)

    def _file(self, path: str) -> CheckedFile:
        if path not in self._files:
            if len(self._files) == _OPEN_FILES:
                self._close()
            self._files[path] = self._stack.enter_context((self.weights.open_file or open_plain)(path))
        return self._files[path]

    def _close(self) -> None:
        self._files.clear()
        self._stack.close()


def block_rows(tensors: Sequence[StoredTensor], block_bytes: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows for reading tensors of one shape in blocks of `BLOCK_BYTES`, or of the given size."""
    rows = tensors[0].shape[0] if tensors[0].shape else 1
    row_bytes = max(max(tensor.size_bytes for tensor in tensors) // max(rows, 1), 1)
    step = max(1, (block_bytes or BLOCK_BYTES) // row_bytes)
    if any(chunk.strides is not None for tensor in tensors for chunk in tensor.chunks):
        step = max(rows, 1)  # with strides, its rows are spread over the file
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)


@contextmanager
def open_plain(path: str) -> Iterator[CheckedFile]:
    """Open a file that has no checksums.

    Raises:
        CheckpointError: it can't be read.
    """
    try:
        stream = open_regular(path, buffering=0)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path} can't be read: {reason}; check the path") from error
    with stream:
        yield CheckedFile(stream, path)


def raw_bytes(block: torch.Tensor) -> memoryview:
    """Return the bytes of the elements in row-major order."""
    flat = block.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def read_ahead(parts: Iterator[T]) -> Iterator[T]:
    """Yield the same parts. A thread reads the next part while the caller writes the current one."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, parts, None)
        while (part := future.result()) is not None:
            future = pool.submit(next, parts, None)
            yield part


def write_parts(stream: BinaryIO, parts: Iterable[bytes | memoryview]) -> None:
    """Write to an open file, one MiB at a time: larger writes take Linux up to ten times as long."""
    file = GrowingFile(stream.fileno(), stream.tell())
    for part in read_ahead(iter(parts)):
        left = memoryview(part)
        for start in range(0, len(left), CHECKED_BYTES):
            stream.write(left[start : start + CHECKED_BYTES])
        file.wrote(len(left))
    stream.flush()
    file.finish()


def sync(stream: BinaryIO) -> None:
    """Flush written data to stable storage."""
    stream.flush()
    os.fsync(stream.fileno())
