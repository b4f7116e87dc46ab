"""From what ranks have of a value to the whole one: declared, or inferred from shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from stratagem_diff.layout import Layout
from stratagem_diff.side import LocalValue
from stratagem_diff.values import Value, first_row, project, projected_rows

Join = Callable[[Sequence[Value]], "Tensor | None"]


@dataclass(frozen=True)
class GlobalValue:
    """A value as the whole model has it, put together from ranks' local values in one way."""

    data: Tensor
    """float64; the tensor itself, or projections of its rows."""
    shape: tuple[int, ...]
    """Of the tensor."""
    dtype: torch.dtype
    """That it was computed in: the coarsest of its local values."""
    how: str = ""
    """How the local values were put together; "" where there was one."""
    is_whole: bool = True
    rank_copies: tuple[tuple[int, Tensor], ...] = field(default=())
    """(rank, its data) where each rank has the whole one."""
    dim: int | None = None
    """Along which ranks' local values lie."""
    owners: tuple[int, ...] = field(default=())
    """Index along `dim` → the rank whose local it is of."""
    lengths: tuple[int, ...] = field(default=())
    """Of each group along `dim`, in the layout's order of groups."""

    def projected(self) -> Tensor:
        """Projections of the rows."""
        return self.data if not self.is_whole else project(self.data, self.shape, [0] * len(self.shape))


def of_parameter(local_values: Sequence[LocalValue], shape: tuple[int, ...]) -> Iterator[GlobalValue]:
    """Yield the ways in which ranks' local values of a parameter, or of what belongs to one, make up a whole.

    Args:
        local values: of all ranks.
        shape: that the other side has, which a flat shard doesn't tell.
    """
    values = [local.value for local in local_values]
    ranks = [local.rank for local in local_values]
    dtype = _coarsest(values)
    declared = _declared(values)
    if declared is not None:
        whole, is_whole = declared
        of_shape = values[0].global_shape
        how = "as the shards declare" if len(values) > 1 else ""
        yield _owned(GlobalValue(whole, of_shape, dtype, how, is_whole), values, ranks)
        return
    if len({value.shape for value in values}) == 1:
        first = values[0]
        rank_copies = tuple((rank, value.data.double()) for rank, value in zip(ranks, values))
        how = "equal on ranks" if len(values) > 1 else ""
        yield GlobalValue(first.data.double(), first.shape, dtype, how, first.is_whole, rank_copies)
    if len(values) == 1 or not all(value.is_whole for value in values):
        return
    data = [value.data for value in values]
    for dim in range(data[0].dim()):
        if _concatenates(data, dim):
            owners = tuple(rank for rank, each in zip(ranks, data) for _ in range(each.shape[dim]))
            whole = torch.cat([each.double() for each in data], dim)
            yield GlobalValue(
                whole, tuple(whole.shape), dtype, f"shards along dim {dim}", True, (), dim, owners
            )
    if all(each.dim() == 1 for each in data) and len(shape) != 1:
        flat = torch.cat([each.double() for each in data])
        if flat.numel() >= math.prod(shape):
            yield GlobalValue(flat[: math.prod(shape)].view(shape), shape, dtype, "flat shards")


def of_batch(
    local_values: Sequence[LocalValue], layout: Layout, *, is_gradient: bool
) -> Iterator[GlobalValue]:
    """Yield the ways in which local values of a value that the model computes make up that of the whole batch."""
    grouped: dict[int, list[LocalValue]] = {}
    for local in local_values:
        index = layout.group_of(local.unit)
        if index is None:
            return
        grouped.setdefault(index, []).append(local)
    order = sorted(grouped)
    for how, join in _ways([grouped[index] for index in order]):
        joined = []
        for index in order:
            made = join([local.value for local in grouped[index]])
            if made is None:
                break
            factor = layout.factors[index] if is_gradient and layout.factors else 1.0
            joined.append(made * factor if factor != 1.0 else made)
        else:
            yield from _joined(joined, [grouped[index] for index in order], layout, how)


def _ways(groups: Sequence[Sequence[LocalValue]]) -> Iterator[tuple[str, Join]]:
    """How the local values within a group, whose ranks have the same samples, make up one."""
    values = [local.value for local in groups[0]]
    if any(value.shard is not None for value in values):
        yield "as the shards declare", lambda each: _declared(each)[0] if _declared(each) else None  # type: ignore[index]  # checked
        return
    yield "", lambda each: each[0].data.double()
    if len(values) > 1:
        if all(value.is_whole for value in values):
            for dim in range(len(values[0].shape)):
                yield f"shards along dim {dim}", _concatenated(dim)
        if len({value.shape for value in values}) == 1:
            yield "sum over ranks", lambda each: torch.stack([value.data.double() for value in each]).sum(0)


def _concatenated(dim: int) -> Join:
    def join(values: Sequence[Value]) -> Tensor | None:
        data = [value.data.double() for value in values]
        return torch.cat(data, dim) if _concatenates(data, dim) else None

    return join


def _joined(
    wholes: Sequence[Tensor], groups: Sequence[Sequence[LocalValue]], layout: Layout, how: str
) -> Iterator[GlobalValue]:
    first = groups[0][0].value
    values = [local.value for group in groups for local in group]
    dtype, is_whole = _coarsest(values), first.is_whole
    ranks = [group[0].rank for group in groups]
    if len(wholes) == 1:
        rank_copies: tuple[tuple[int, Tensor], ...] = ()
        if how == "" and len(groups[0]) > 1 and len({value.shape for value in values}) == 1:
            rank_copies = tuple((local.rank, local.value.data.double()) for local in groups[0])
        whole = _reordered(wholes[0], layout, 0 if not is_whole else layout.dim)
        shape = tuple(whole.shape) if is_whole else first.global_shape
        yield GlobalValue(whole, shape, dtype, how, is_whole, rank_copies if layout.order is None else ())
        return
    for dim in _sample_dims(wholes, layout, is_whole=is_whole):
        whole = torch.cat(list(wholes), dim)
        owners = [rank for rank, each in zip(ranks, wholes) for _ in range(each.shape[dim])]
        placed = _reordered(whole, layout, dim)
        if layout.order is not None:
            times = whole.shape[dim] // layout.length
            moved = [0] * len(owners)
            for index, to in enumerate(layout.order.tolist()):
                for k in range(times):
                    moved[to * times + k] = owners[index * times + k]
            owners = moved
        of_shape = tuple(placed.shape) if is_whole else (placed.shape[0], *first.global_shape[1:])
        text = "samples of all micro-batches" + ("" if dim == layout.dim else f" along dim {dim}")
        text += f", {how}" if how else ""
        lengths = tuple(each.shape[dim] for each in wholes)
        yield GlobalValue(placed, of_shape, dtype, text, is_whole, (), dim, tuple(owners), lengths)
    if len({each.shape for each in wholes}) == 1:
        stacked = torch.stack(list(wholes))
        shape = tuple(wholes[0].shape) if is_whole else first.global_shape
        # What isn't of samples: a loss is the mean over micro-batches, or their sum; a mask or a table is the same.
        yield GlobalValue(
            wholes[0], shape, dtype, "equal in all micro-batches", is_whole, tuple(zip(ranks, wholes))
        )
        yield GlobalValue(stacked.mean(0), shape, dtype, "mean of micro-batches", is_whole)
        yield GlobalValue(stacked.sum(0), shape, dtype, "sum of micro-batches", is_whole)


def _sample_dims(wholes: Sequence[Tensor], layout: Layout, *, is_whole: bool) -> Iterator[int]:
    """Yield the dims along which samples may lie: not the first one in the state of a recurrent layer."""
    if layout.dim is None or not layout.length:
        return
    for dim in range(wholes[0].dim() if is_whole else min(1, wholes[0].dim())):
        if not _concatenates(wholes, dim):
            continue
        count = sum(each.shape[dim] for each in wholes)
        if count == layout.length or (dim == layout.dim and count % layout.length == 0):
            yield dim


def _reordered(whole: Tensor, layout: Layout, dim: int | None) -> Tensor:
    if layout.order is None or dim is None or whole.dim() <= dim or not layout.length:
        return whole
    times, rest = divmod(whole.shape[dim], layout.length)
    if rest or not times:
        return whole
    index = (layout.order[:, None] * times + torch.arange(times)).reshape(-1)
    return torch.empty_like(whole).index_copy_(dim, index, whole)


def _declared(values: Sequence[Value]) -> tuple[Tensor, bool] | None:
    """The whole of shards that say where they lie; None where they don't."""
    if any(value.shard is None for value in values):
        return None
    first = values[0]
    shards = [value.shard for value in values if value.shard is not None]
    shape = first.global_shape
    is_whole = first.is_whole
    size = shape if is_whole else (projected_rows(shape), first.data.shape[1])
    whole = torch.zeros(size, dtype=torch.float64)
    seen = set()
    for value, shard in zip(values, shards):
        if not shard.partial and shard.offsets in seen and value.data.numel():
            continue  # a copy of the same shard
        seen.add(shard.offsets)
        if is_whole:
            region = tuple(slice(at, at + length) for at, length in zip(shard.offsets, value.shape))
            whole[region] += value.data.double()
        else:
            row = first_row(shard, len(shape))
            whole[row : row + value.data.shape[0]] += value.data
    return whole, is_whole


def _owned(whole: GlobalValue, values: Sequence[Value], ranks: Sequence[int]) -> GlobalValue:
    """Add along which dim declared shards lie, and whose each index is."""
    shape = whole.shape
    if any(value.shard is not None and value.shard.partial for value in values):
        return whole  # no rank has a copy: they add up
    if all(value.shape == shape for value in values):
        return replace(
            whole, rank_copies=tuple((rank, value.data.double()) for rank, value in zip(ranks, values))
        )
    dims = [dim for dim in range(len(shape)) if any(value.shape[dim] != shape[dim] for value in values)]
    if len(dims) != 1 or not whole.is_whole:
        return whole
    owners = [0] * shape[dims[0]]
    for rank, value in zip(ranks, values):
        assert value.shard is not None
        at = value.shard.offsets[dims[0]]
        owners[at : at + value.shape[dims[0]]] = [rank] * value.shape[dims[0]]
    return replace(whole, dim=dims[0], owners=tuple(owners))


def _concatenates(tensors: Sequence[Tensor], dim: int) -> bool:
    if any(each.dim() != tensors[0].dim() or each.dim() <= dim for each in tensors):
        return False
    return len({(*each.shape[:dim], *each.shape[dim + 1 :]) for each in tensors}) == 1


def _coarsest(values: Sequence[Value]) -> torch.dtype:
    dtypes = [value.dtype for value in values if value.dtype.is_floating_point]
    return max(dtypes, key=lambda each: torch.finfo(each).eps, default=torch.float32)
