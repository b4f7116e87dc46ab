"""Assign each sharded tensor an owner rank that steps it, and send shards to the owner and back."""

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
"""A rank's coordinates along the mesh dimensions that shard a tensor, in the order of the cuts."""


@dataclass(frozen=True)
class Cut:
    """One cut of a tensor, or of a part that an earlier cut has made."""

    mesh_dim: int
    """The mesh dimension along which ranks hold the parts."""
    dim: int
    """The tensor dimension that is cut."""
    parts: int

    def sizes(self, length: int) -> list[int]:
        """Return the length of each part, as of `torch.chunk`; the last parts may be empty."""
        full = -(-length // self.parts)
        return [max(0, min(full, length - full * at)) for at in range(self.parts)]


@dataclass(frozen=True)
class Layout:
    """How a sharded tensor is cut."""

    mesh: Any
    shape: torch.Size
    cuts: tuple[Cut, ...]
    """The cuts, in the order in which they are applied to the whole tensor."""

    @classmethod
    def of(cls, tensor: DTensor) -> Layout:
        """Return the layout of a tensor."""
        mesh = tensor.device_mesh
        plain: list[Cut] = []
        strided: list[Cut] = []
        for mesh_dim, placement in enumerate(tensor.placements):
            if isinstance(placement, Replicate):
                continue
            dim: int = placement.dim  # type: ignore[attr-defined]  # of every kind of shard
            cut = Cut(mesh_dim, dim % tensor.dim(), mesh.size(mesh_dim))
            # A split factor means that fully_shard has cut the shards of a layer that was split before.
            (strided if getattr(placement, "split_factor", 1) > 1 else plain).append(cut)
        return cls(mesh, tensor.shape, (*plain, *strided))

    @property
    def kind(self) -> tuple[Any, ...]:
        """The key of tensors that can be exchanged together."""
        return (self.mesh, *(cut.mesh_dim for cut in self.cuts))

    @cached_property
    def own(self) -> Coordinates:
        """Coordinates of this rank."""
        return tuple(self.mesh.get_local_rank(cut.mesh_dim) for cut in self.cuts)

    @property
    def work(self) -> int:
        """Estimated cost of a step: for a matrix, that of a product with a square matrix of its shorter side."""
        return prod(self.shape) * (min(self.shape[-2:]) if len(self.shape) > 1 else 1)

    def shape_at(self, coordinates: Coordinates) -> list[int]:
        """Return the shape of the part at `coordinates`. Fewer coordinates than cuts apply the first cuts only."""
        shape = list(self.shape)
        for cut, at in zip(self.cuts, coordinates):
            shape[cut.dim] = cut.sizes(shape[cut.dim])[at]
        return shape


class Owners:
    """Assigns each tensor to one of the ranks that have its shards: to the one with the least work so far.

    All ranks compute the same assignment. With replicated shards, each group of replicas has its own owner.
    """

    def __init__(self) -> None:
        self._owner: dict[int, tuple[Layout, Coordinates]] = {}
        self._work: dict[tuple[Any, ...], dict[Coordinates, int]] = {}

    def add(self, tensors: Iterable[DTensor]) -> None:
        """Assign owners to the tensors that have none yet."""
        new = [(tensor, Layout.of(tensor)) for tensor in tensors if id(tensor) not in self._owner]
        for tensor, layout in sorted(new, key=lambda each: -each[1].work):
            every = product(*(range(cut.parts) for cut in layout.cuts))
            work = self._work.setdefault(layout.kind, dict.fromkeys(every, 0))
            owner = min(work, key=lambda at: (work[at], at))
            work[owner] += layout.work
            self._owner[id(tensor)] = layout, owner

    def owns(self, tensor: DTensor) -> bool:
        """Whether this rank owns a tensor, and so steps it."""
        layout, owner = self._owner[id(tensor)]
        return layout.own == owner

    def gather(self, tensors: Sequence[DTensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Gather the shards of each tensor on its owner. Collective.

        Args:
            tensors: tensors that have owners; the same ones on all ranks.
            values: DTensors with the layouts of `tensors`, of any dtype.

        Returns:
            Whole values of the tensors that this rank owns, None for the others.
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
        """Scatter shards from each tensor's owner to all ranks. Collective.

        Args:
            tensors: tensors that have owners; the same ones on all ranks.
            wholes: whole values of the tensors that this rank owns, in the tensor's dtype; None for the others.

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
        """Group the tensors that can be sent together: cut along the same dimensions, of one dtype."""
        batches: dict[Any, _Batch] = {}
        for at, (tensor, value) in enumerate(zip(tensors, values)):
            layout, owner = self._owner[id(tensor)]
            key = (layout.kind, value.dtype)
            batches.setdefault(key, _Batch(layout.mesh, value.dtype)).members[at] = (layout, owner)
        return list(batches.values())


class _Batch:
    """Tensors of one kind and dtype that are sent together.

    A step of an exchange runs along one dimension of the mesh. Ranks along it differ only in that coordinate, so each
    knows which tensors the others have, and their shapes.
    """

    def __init__(self, mesh: Any, dtype: torch.dtype) -> None:
        self.members: dict[int, tuple[Layout, Coordinates]] = {}
        self._mesh, self._dtype = mesh, dtype

    @property
    def cuts(self) -> int:
        """Number of cuts of each tensor."""
        return len(next(iter(self.members.values()))[0].cuts)

    def joined(self, step: int, held: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Undo a cut: join its parts on the rank that has the owner's coordinate in its dimension. Collective."""
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
        """Apply a cut: send its parts from the rank with the owner's coordinate in its dimension. Collective."""
        sent: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        coming: defaultdict[int, list[list[int]]] = defaultdict(list)
        order: defaultdict[int, list[int]] = defaultdict(list)
        for at, (layout, owner) in self.members.items():
            if owner[step + 1 :] != layout.own[step + 1 :]:
                continue  # received in a later step
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
        """Send parts to ranks by coordinate in the cut's dimension; return what each rank has sent. Collective."""
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
