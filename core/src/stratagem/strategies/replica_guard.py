"""`ReplicaGuard`: compares ranks that hold copies during training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from stratagem.errors import ReplicaError
from stratagem.strategies.fingerprint import fingerprint, number_of
from stratagem.strategies.replica import Replica

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives
    from stratagem.strategies.prepared import Prepared

LAYOUTS = 4
"""Number of layouts of shards for which a message has room. Shards in further layouts aren't compared."""


class ReplicaGuard:
    """Compares what `Prepared.replicas` yields across ranks, by fingerprints in one small message.

    It compares after steps 1, 2, 4, 8 and so on, then after every `every` steps, and before each checkpoint. If ranks
    differ, a second exchange finds the first difference, and all ranks raise.

    Args:
        prepared: the module and optimizers that are trained.
        collectives: of all ranks of the run.
        every: optimizer steps between two comparisons; 0 compares nothing.
    """

    def __init__(self, prepared: Prepared, collectives: Collectives, every: int) -> None:
        self._prepared, self._collectives, self._every = prepared, collectives, every
        self._step = self._compared_at = 0
        self.is_active = every > 0 and collectives.world_size > 1
        """Whether there is anything to compare."""

    def before_step(self, index: int) -> None:
        """Compare what `Prepared.gradient_replicas` yields, if `after_step` compares after this step.

        Collective if it does. `after_step` isn't enough: under some strategies, ranks become equal again in the step
        although their gradients differed.

        Args:
            index: of the optimizer that is about to step.

        Raises:
            ReplicaError: gradients that should be averages over ranks differ between them.
        """
        if self.is_active and self._is_due(self._step + 1):
            gradients = [Replica(*each) for each in self._prepared.gradient_replicas(index)]
            if gradients:
                self._compare(gradients, f"before step {self._step + 1}", _GRADIENT_ADVICE)

    def after_step(self, step: int | None = None) -> None:
        """Compare if it is time. Every rank must call it after each step, because comparing is collective.

        Args:
            step: number of optimizer steps so far; counted here when None.

        Raises:
            ReplicaError: ranks differ.
        """
        self._step = self._step + 1 if step is None else step
        if not self.is_active:
            return
        if self._is_due(self._step):
            self.compare(f"after step {self._step}")

    def _is_due(self, step: int) -> bool:
        # Powers of two, too, so that errors that exist from the beginning are found early.
        return step % self._every == 0 or (step < self._every and not step & (step - 1))

    def compare_last_steps(self, when: str) -> None:
        """Compare now if steps were made since the last comparison. Collective.

        Args:
            when: as for `compare`.

        Raises:
            ReplicaError: as for `compare`.
        """
        if self._step > self._compared_at:
            self.compare(when)

    def compare(self, when: str) -> None:
        """Compare now. Collective.

        Args:
            when: for the message, such as "before the checkpoint".

        Raises:
            ReplicaError: ranks differ; names what, when, and the ranks.
        """
        if not self.is_active:
            return
        self._compared_at = self._step
        self._compare(list(self._copies()), when, _ADVICE)

    def _compare(self, copies: list[Replica], when: str, advice: str) -> None:
        by_layout: dict[str, list[Replica]] = defaultdict(list)
        for copy in copies:
            by_layout[copy.layout].append(copy)
        device = self._collectives.device
        # The size is the same on all ranks, whatever they hold: gathering different sizes would fail or hang.
        # Two numbers for values that every rank has: a checksum of their names, and their fingerprint. Then two for
        # each layout: a checksum of this rank's shard, and the fingerprint of values in it.
        numbers = torch.zeros(2 + 2 * LAYOUTS, dtype=torch.int64, device=device)
        everywhere = by_layout.pop("", [])
        numbers[0] = number_of([copy.name for copy in everywhere])
        numbers[1] = _number(everywhere, device)
        for index, layout in enumerate(sorted(by_layout)[:LAYOUTS]):
            numbers[2 + 2 * index] = number_of(by_layout[layout][0].shard)
            numbers[3 + 2 * index] = _number(by_layout[layout], device)
        gathered = self._collectives.all_gather(numbers).tolist()
        if not _agree(gathered):
            self._raise(copies, when, advice)

    def _copies(self) -> Iterator[Replica]:
        for each in self._prepared.replicas():
            replica = Replica(*each)
            if hasattr(replica.value, "placements"):
                local, layout, shard = _of_shards(replica.value)
                replica = Replica(replica.name, local, layout or replica.layout, shard or replica.shard)
            yield replica

    def _raise(self, copies: list[Replica], when: str, advice: str) -> None:
        device = self._collectives.device
        own = {c.name: (c.layout, c.shard, int(_number([c], device))) for c in copies}
        difference = _difference(self._collectives.gather_objects(own))
        raise ReplicaError(f"{when}, {difference}: {advice}")


def _difference(everyone: list[dict[str, tuple[str, str, int]]]) -> str:
    """Describe the first difference between ranks.

    Args:
        everyone: for each rank, name → layout, shard and fingerprint of its copy.
    """
    shards = [{layout: shard for layout, shard, _ in own.values()} for own in everyone]
    for name in dict.fromkeys(name for own in everyone for name in own):
        layout, shard, _ = next(own[name] for own in everyone if name in own)
        lacking = [
            rank for rank, own in enumerate(everyone) if name not in own and shards[rank].get(layout) == shard
        ]
        if lacking:
            return f"rank {_ranks(lacking)} lacks {name}, which other ranks have"
        alike: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, own in enumerate(everyone):
            if name in own:
                layout, shard, number = own[name]
                alike[layout, shard][number].append(rank)
        for by_number in alike.values():
            most, *others = sorted(by_number.values(), key=lambda ranks: (-len(ranks), ranks))
            if others:
                differing = _ranks(sorted(rank for ranks in others for rank in ranks))
                return (
                    f"{name} isn't on rank {differing} what it is on rank {_ranks(most)}, which holds a copy"
                )
    return "ranks that hold copies differed, and were equal again in a second comparison"


_GRADIENT_ADVICE = (
    "compute gradients by runtime.backward(loss) and the module that setup() returned, average what you computed "
    "otherwise by runtime.average_gradients(optimizer), and change parameters alike on all ranks"
)
_ADVICE = (
    "look for what depends on the rank, as a step that only one rank makes; check_replicas_every=0 goes on without "
    "comparing"
)


def _number(copies: list[Replica], device: torch.device) -> torch.Tensor:
    names = [copy.name for copy in copies]
    tensors = [copy.value for copy in copies if isinstance(copy.value, torch.Tensor)]
    others = [(copy.name, copy.value) for copy in copies if not isinstance(copy.value, torch.Tensor)]
    return fingerprint(tensors, device) + number_of((names, others))


def _agree(gathered: list[list[int]]) -> bool:
    if any(row[:2] != gathered[0][:2] for row in gathered):
        return False
    for index in range(2, len(gathered[0]), 2):
        numbers: dict[int, int] = {}
        if any(numbers.setdefault(row[index], row[index + 1]) != row[index + 1] for row in gathered):
            return False
    return True


def _of_shards(tensor: Any) -> tuple[torch.Tensor, str, str]:
    """Return this rank's shard of a DTensor, the mesh dimensions that shard it, and this rank's index along them."""
    mesh = tensor.device_mesh
    dims = [dim for dim, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    place = [mesh.get_local_rank(dim) for dim in dims]
    # The mesh's shape belongs to the layout, because dimensions of different meshes have the same numbers.
    layout = f"{tuple(mesh.mesh.shape)} {dims}" if dims else ""
    return tensor.to_local(), layout, f"{place}" if dims else ""


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
