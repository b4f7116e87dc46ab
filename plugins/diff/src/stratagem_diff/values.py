"""`Value`: one tensor of a record, kept whole or as random projections of its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

WHOLE = 65_536
"""A tensor of up to so many elements is kept whole."""
PROJECTIONS = 8
"""How many numbers are kept of each row of a larger one."""
CHUNK = 1024
"""Length of the rows into which a large tensor of one dim is laid."""


@dataclass(frozen=True)
class Shard:
    """Where a rank's tensor lies in the whole one, as declared by a DTensor."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    """Of the rank's first element, per dim."""
    partial: bool = False
    """Whether the whole is the sum over ranks."""


@dataclass(frozen=True)
class Value:
    """What a record has of one tensor of one rank."""

    data: Tensor
    """The tensor itself, on the CPU in its own dtype; or projections, float64 of shape (rows, PROJECTIONS)."""
    shape: tuple[int, ...]
    """Of the rank's tensor."""
    shard: Shard | None = None
    """Where it lies in the whole one; None where nothing declares it."""
    is_whole: bool = True
    """Whether `data` is the tensor itself."""
    dtype: torch.dtype = torch.float32
    """Of the rank's tensor."""

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor, as far as declared."""
        return self.shape if self.shard is None else self.shard.shape


def keep(tensor: Tensor, shard: Shard | None = None, whole: int = WHOLE) -> Value:
    """Return a copy on the CPU, or projections of its rows where the whole tensor has more elements than `whole`."""
    shape = tuple(tensor.shape)
    of_whole = shape if shard is None else shard.shape
    local = tensor.detach()
    if math.prod(of_whole) <= whole:
        return Value(local.to("cpu", copy=True).contiguous(), shape, shard, True, local.dtype)
    offsets = tuple(0 for _ in shape) if shard is None else shard.offsets
    return Value(project(local.cpu(), of_whole, offsets), shape, shard, False, local.dtype)


def project(tensor: Tensor, shape: Sequence[int], offsets: Sequence[int]) -> Tensor:
    """Return random projections of the rows of a tensor, float64 of shape (rows, PROJECTIONS).

    Projections are linear, so that those of shards add up to those of the whole tensor, and the norm of the
    difference of two tensors' projections estimates sqrt(PROJECTIONS) times that of the tensors' difference.

    Args:
        tensor: this rank's shard.
        shape: of the whole tensor, which says how a column is numbered.
        offsets: of this shard in it.
    """
    if tensor.dim() < 2:
        flat = tensor.reshape(-1).double()
        front = offsets[0] % CHUNK if offsets else 0
        chunks = math.ceil((front + flat.numel()) / CHUNK)
        padded = flat.new_zeros(chunks * CHUNK)
        padded[front : front + flat.numel()] = flat
        return padded.view(chunks, CHUNK) @ _signs(CHUNK)
    columns = torch.zeros((), dtype=torch.long)
    for length, at, size in zip(shape[1:], offsets[1:], tensor.shape[1:]):
        columns = columns.unsqueeze(-1) * length + torch.arange(at, at + size)
    signs = _signs(math.prod(shape[1:]))[columns.reshape(-1)]
    laid = tensor.reshape(tensor.shape[0], -1)
    # In blocks: the copy in double precision is as large as a block.
    rows = max(1, 2**20 // max(1, laid.shape[1]))
    blocks = [laid[at : at + rows].double() @ signs for at in range(0, len(laid), rows)]
    return torch.cat(blocks) if blocks else torch.zeros(0, PROJECTIONS, dtype=torch.float64)


def first_row(shard: Shard | None, dims: int) -> int:
    """Return the row of the whole tensor's projections at which those of a shard begin."""
    if shard is None or not shard.offsets:
        return 0
    return shard.offsets[0] // CHUNK if dims < 2 else shard.offsets[0]


def projected_rows(shape: Sequence[int]) -> int:
    """Return how many rows the projections of a whole tensor have."""
    return math.ceil(math.prod(shape) / CHUNK) if len(shape) < 2 else shape[0]


@lru_cache(maxsize=8)
def _signs(columns: int) -> Tensor:
    """The same random signs wherever a tensor with so many columns is recorded."""
    generator = torch.Generator().manual_seed(20_260_101)
    return torch.randint(0, 2, (columns, PROJECTIONS), generator=generator).double() * 2 - 1
