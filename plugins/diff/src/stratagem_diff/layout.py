"""How the micro-batches of a run's ranks make up the step's batch: inferred from what the model got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from stratagem_diff.side import Side, Unit


@dataclass(frozen=True)
class Layout:
    """The batch of a step as one side's ranks have it."""

    groups: tuple[tuple[Unit, ...], ...]
    """Units that have the same samples stand together: copies of a batch, or shards of what is made of it."""
    dim: int | None = None
    """Along which the groups' inputs make up the batch; None where that isn't known."""
    order: Tensor | None = None
    """Index along `dim` → where it comes in the other side's order; None for the same order."""
    length: int = 0
    """Of the batch along `dim`."""
    factors: tuple[float, ...] = field(default=())
    """By what each group's gradients of values are multiplied to be those of the other side's loss."""

    def group_of(self, unit: Unit) -> int | None:
        """Index of the group of a unit; by its micro-batch for ranks that don't get the inputs, as in a pipeline."""
        for index, group in enumerate(self.groups):
            if unit in group:
                return index
        same = [
            index for index, group in enumerate(self.groups) if any(micro == unit[1] for _, micro in group)
        ]
        return same[0] if len(same) == 1 else None


@dataclass(frozen=True)
class Layouts:
    """Those of both sides for one step."""

    ours: Layout
    theirs: Layout
    problem: str = ""
    """Why the sides' batches can't be matched."""
    is_difference: bool = False
    """Whether that is because they are different data."""


def lay_out(ours: Side, theirs: Side, step: int) -> Layouts:
    """Find how both sides' micro-batches make up the same batch."""
    mine, others = ours.inputs(step), theirs.inputs(step)
    one, other = Layout(_groups(mine)), Layout(_groups(others))
    common = _common_input(mine, others)
    if common is None:
        if len(one.groups) == len(other.groups) == 1:
            return Layouts(one, other)
        return Layouts(one, other, "the model got no tensor by which its batches could be compared")
    a, b = (_of_groups(layout, inputs, common) for layout, inputs in ((one, mine), (other, others)))
    if not a or not b:
        return Layouts(one, other, "on some ranks the model got other inputs")
    ragged = True
    for dim in range(a[0].dim()):
        if not (_fits(a, dim) and _fits(b, dim) and _fits([a[0], b[0]], dim)):
            continue
        ragged = False
        first, second = torch.cat(a, dim), torch.cat(b, dim)
        if first.shape != second.shape:
            continue
        order = _order(first, second, dim)
        if order is not None:
            same = bool(torch.equal(order, torch.arange(len(order))))
            length = first.shape[dim]
            return Layouts(
                replace(one, dim=dim, length=length),
                replace(other, dim=dim, length=length, order=None if same else order),
            )
    if ragged:
        return Layouts(one, other, "batches have other lengths, as where each is padded separately")
    return Layouts(one, other, _unlike(one, other, a, b), is_difference=True)


def _groups(inputs: Mapping[Unit, Mapping[str, Tensor]]) -> tuple[tuple[Unit, ...], ...]:
    found: dict[tuple[object, ...], list[Unit]] = {}
    for unit in sorted(inputs, key=lambda each: (each[1], each[0])):
        tensors = inputs[unit]
        key = (unit[1], *(_bytes(tensors[name]) for name in sorted(tensors)))
        found.setdefault(key, []).append(unit)
    return tuple(tuple(units) for units in found.values())


def _common_input(
    ours: Mapping[Unit, Mapping[str, Tensor]], theirs: Mapping[Unit, Mapping[str, Tensor]]
) -> str | None:
    """The largest input that both sides have: samples are matched by its values."""
    if not ours or not theirs:
        return None
    mine, other = (each[min(each)] for each in (ours, theirs))
    names = [name for name in mine if name in other and mine[name].dim()]
    return max(names, key=lambda name: mine[name].numel(), default=None)


def _of_groups(layout: Layout, inputs: Mapping[Unit, Mapping[str, Tensor]], name: str) -> list[Tensor]:
    tensors = [inputs[group[0]].get(name) for group in layout.groups]
    return [each for each in tensors if each is not None] if None not in tensors else []


def _fits(tensors: Sequence[Tensor], dim: int) -> bool:
    shapes = {(*each.shape[:dim], *each.shape[dim + 1 :]) for each in tensors}
    return len(shapes) == 1


def _order(first: Tensor, second: Tensor, dim: int) -> Tensor | None:
    """Return where the other side's slices come in ours; None where they aren't the same slices."""
    dtype = min((first.dtype, second.dtype), key=lambda each: each.itemsize)
    places: dict[bytes, list[int]] = {}
    for index, item in enumerate(first.unbind(dim)):
        places.setdefault(_bytes(item.to(dtype)), []).append(index)
    order = []
    for item in second.unbind(dim):
        waiting = places.get(_bytes(item.to(dtype)))
        if not waiting:
            return None
        order.append(waiting.pop(0))
    return torch.tensor(order)


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def _unlike(one: Layout, other: Layout, a: Sequence[Tensor], b: Sequence[Tensor]) -> str:
    mine, theirs = sum(each.shape[0] for each in a), sum(each.shape[0] for each in b)
    if mine != theirs:
        for label, layout in (("A", one), ("B", other)):
            copies = max(len(group) for group in layout.groups)
            if copies > 1:
                return f"A has {mine} samples and B {theirs}: {copies} ranks of {label} read the same ones"
        return f"A has {mine} samples and B {theirs}"
    return "A and B have other samples"
