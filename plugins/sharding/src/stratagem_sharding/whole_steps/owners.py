"""Which rank steps each of several sharded tensors, and how their shards come to it and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from stratagem_sharding.torch_private import local_shard

Coordinates = tuple[int, ...]
"""Of a rank, along the dimensions of a mesh over which a tensor is cut, in the order of the cuts."""


@dataclass(frozen=True)
class Cut:
    """One cut of a tensor, or of what an earlier cut has left of it."""

    mesh_dim: int
    """The dimension of the mesh whose ranks have the parts."""
    dim: int
    """The dimension of the tensor."""
    parts: int

    def sizes(self, length: int) -> list[int]:
        """Return how long each part is, as torch.chunk cuts; the last ones may be empty."""
        full = -(-length // self.parts)
        return [max(0, min(full, length - full * at)) for at in range(self.parts)]


@dataclass(frozen=True)
class Layout:
    """How a sharded tensor is cut."""

    mesh: Any
    shape: torch.Size
    cuts: tuple[Cut, ...]
    """In the order in which the whole is cut."""

    @classmethod
    def of(cls, tensor: DTensor) -> Layout:
        """Return that of a tensor."""
        mesh = tensor.device_mesh
        plain: list[Cut] = []
        strided: list[Cut] = []
        for mesh_dim, placement in enumerate(tensor.placements):
            if isinstance(placement, Replicate):
                continue
            dim: int = placement.dim  # type: ignore[attr-defined]  # of every kind of shard
            cut = Cut(mesh_dim, dim % tensor.dim(), mesh.size(mesh_dim))
            # fully_shard cuts shards of a layer that was split before: torch says so by a split factor.
            (strided if getattr(placement, "split_factor", 1) > 1 else plain).append(cut)
        return cls(mesh, tensor.shape, (*plain, *strided))

    @property
    def kind(self) -> tuple[Any, ...]:
        """What tensors have in common that are exchanged together."""
        return (self.mesh, *(cut.mesh_dim for cut in self.cuts))

    @cached_property
    def own(self) -> Coordinates:
        """Where this rank stands."""
        return tuple(self.mesh.get_local_rank(cut.mesh_dim) for cut in self.cuts)

    @property
    def work(self) -> int:
        """About how long a step takes: that of a matrix multiplies it with one as wide as its shorter side."""
        return prod(self.shape) * (min(self.shape[-2:]) if len(self.shape) > 1 else 1)

    def shape_at(self, coordinates: Coordinates) -> list[int]:
        """Return the shape of the part at some coordinates, of the first cuts alone where there are fewer."""
        shape = list(self.shape)
        for cut, at in zip(self.cuts, coordinates):
            shape[cut.dim] = cut.sizes(shape[cut.dim])[at]
        return shape


class Owners:
    """Deals tensors out among the ranks that have their shards: each to the one with the least work so far.

    All ranks come to the same result. Ranks that hold copies of each other's shards each have an owner of their own.
    """

    def __init__(self) -> None:
        self._owner: dict[int, tuple[Layout, Coordinates]] = {}
        self._work: dict[tuple[Any, ...], dict[Coordinates, int]] = {}

    def add(self, tensors: Iterable[DTensor]) -> None:
        """Deal out those that have no owner yet."""
        new = [(tensor, Layout.of(tensor)) for tensor in tensors if id(tensor) not in self._owner]
        for tensor, layout in sorted(new, key=lambda each: -each[1].work):
            every = product(*(range(cut.parts) for cut in layout.cuts))
            work = self._work.setdefault(layout.kind, dict.fromkeys(every, 0))
            owner = min(work, key=lambda at: (work[at], at))
            work[owner] += layout.work
            self._owner[id(tensor)] = layout, owner

    def owns(self, tensor: DTensor) -> bool:
        """Whether this rank steps a tensor."""
        layout, owner = self._owner[id(tensor)]
        return layout.own == owner

    def gather(self, tensors: Sequence[DTensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Bring shards to the owners. Collective.

        Args:
            tensors: were dealt out; the same ones on all ranks.
            values: DTensors laid out as these are; of any dtype.

        Returns:
            Whole tensors of those that this rank owns, None for others.
        """
        shards = [cast("DTensor", value).to_local() for value in values]
        result: list[torch.Tensor | None] = [None] * len(tensors)
        for batch in self._batches(tensors, shards):
            held = {at: shards[at] for at in batch.members}
            for step in reversed(range(batch.cuts)):
                held = batch.joined(step, held)
            for at, whole in held.items():
                result[at] = whole
        return result

    def scatter(
        self, tensors: Sequence[DTensor], wholes: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Bring each rank its shards. Collective.

        Args:
            tensors: were dealt out; the same ones on all ranks.
            wholes: of those that this rank owns, in the dtype of the tensor; None for others.

        Returns:
            This rank's shards.
        """
        result: dict[int, torch.Tensor] = {}
        for batch in self._batches(tensors, [local_shard(tensor) for tensor in tensors]):
            held = {at: whole for at in batch.members if (whole := wholes[at]) is not None}
            for step in range(batch.cuts):
                held = batch.divided(step, held)
            result.update(held)
        return [result[at] for at in range(len(tensors))]

    def _batches(self, tensors: Sequence[DTensor], values: Sequence[torch.Tensor]) -> list[_Batch]:
        """Return what can be sent together: cut over the same dimensions, in one dtype."""
        batches: dict[Any, _Batch] = {}
        for at, (tensor, value) in enumerate(zip(tensors, values)):
            layout, owner = self._owner[id(tensor)]
            key = (layout.kind, value.dtype)
            batches.setdefault(key, _Batch(layout.mesh, value.dtype)).members[at] = (layout, owner)
        return list(batches.values())


class _Batch:
    """Tensors of one kind and dtype that travel together.

    A step of an exchange is along one dimension of the mesh. Ranks along it differ in nothing else, so that all of
    them know which tensors the others have, and in which shapes.
    """

    def __init__(self, mesh: Any, dtype: torch.dtype) -> None:
        self.members: dict[int, tuple[Layout, Coordinates]] = {}
        self._mesh, self._dtype = mesh, dtype

    @property
    def cuts(self) -> int:
        """How many cuts each member has."""
        return len(next(iter(self.members.values()))[0].cuts)

    def joined(self, step: int, held: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Undo a cut: its parts come to the rank with the owner's coordinate along its dimension. Collective."""
        sent: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        coming: defaultdict[int, list[list[int]]] = defaultdict(list)
        for at, part in held.items():
            layout, owner = self.members[at]
            sent[owner[step]].append(part)
            if owner[step] == layout.own[step]:
                for rank in range(layout.cuts[step].parts):
                    coming[rank].append(layout.shape_at((*layout.own[:step], rank)))
        came = self._sent(step, sent, coming)
        mine = [at for at in held if self.members[at][1][step] == self.members[at][0].own[step]]
        return {
            at: torch.cat([parts[place] for parts in came], self.members[at][0].cuts[step].dim)
            for place, at in enumerate(mine)
        }

    def divided(self, step: int, held: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Make a cut: its parts go from the rank with the owner's coordinate to all ranks along it. Collective."""
        sent: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        coming: defaultdict[int, list[list[int]]] = defaultdict(list)
        order: defaultdict[int, list[int]] = defaultdict(list)
        for at, (layout, owner) in self.members.items():
            if owner[step + 1 :] != layout.own[step + 1 :]:
                continue  # comes in a later step
            cut = layout.cuts[step]
            if at in held:
                whole = held[at]
                for rank, part in enumerate(torch.split(whole, cut.sizes(whole.shape[cut.dim]), cut.dim)):
                    sent[rank].append(part)
            coming[owner[step]].append(layout.shape_at(layout.own[: step + 1]))
            order[owner[step]].append(at)
        came = self._sent(step, sent, coming)
        return {at: part for rank, members in order.items() for at, part in zip(members, came[rank])}

    def _sent(
        self, step: int, sent: dict[int, list[torch.Tensor]], coming: dict[int, list[list[int]]]
    ) -> list[list[torch.Tensor]]:
        """Send parts to ranks, by coordinate along the dimension of a cut; return what each has sent. Collective."""
        layout, _ = next(iter(self.members.values()))
        mesh_dim = layout.cuts[step].mesh_dim
        ranks, device = range(self._mesh.size(mesh_dim)), self._mesh.device_type
        rows = [part.reshape(-1).to(device) for rank in ranks for part in sent.get(rank, ())]
        lengths = [[prod(shape) for shape in coming.get(rank, ())] for rank in ranks]
        output = torch.empty(sum(map(sum, lengths)), dtype=self._dtype, device=device)
        dist.all_to_all_single(
            output,
            torch.cat(rows) if rows else output.new_empty(0),
            [sum(each) for each in lengths],
            [sum(part.numel() for part in sent.get(rank, ())) for rank in ranks],
            group=self._mesh.get_group(mesh_dim),
        )
        from_ranks = torch.split(output, [sum(each) for each in lengths])
        return [
            [part.view(shape) for part, shape in zip(torch.split(one, each), coming.get(rank, ()))]
            for rank, one, each in zip(ranks, from_ranks, lengths)
        ]
