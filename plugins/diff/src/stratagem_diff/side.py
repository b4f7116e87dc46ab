"""`Side`: one of the two runs, its values by place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from stratagem_diff.files import KINDS, Place, RankRecord
from stratagem_diff.values import Value

Unit = tuple[int, int]
"""A rank, and one of its micro-batches within a step."""


@dataclass(frozen=True)
class LocalValue:
    """What one rank has of a value, for one micro-batch."""

    rank: int
    micro_batch: int
    value: Value

    @property
    def unit(self) -> Unit:
        """The rank and the micro-batch."""
        return self.rank, self.micro_batch


class Side:
    """A run: the records of its ranks.

    Args:
        ranks: in their order.
        label: how messages call it, such as "A".
    """

    def __init__(self, ranks: Sequence[RankRecord], label: str) -> None:
        self.label, self.ranks = label, ranks
        self.world_size = len(ranks)
        self.steps = min(record.steps for record in ranks)
        self.modules: Mapping[str, str] = {k: v for record in ranks for k, v in record.model.modules.items()}
        self.aliases: Mapping[str, str] = {k: v for record in ranks for k, v in record.model.aliases.items()}
        self.facts = ranks[0].facts
        self.first_step: int = self.facts.get("first_step", 1)
        self.places: dict[Place, list[LocalValue]] = {}
        for record in ranks:
            for entry in record.entries:
                local = LocalValue(record.rank, entry.micro_batch, entry.value)
                self.places.setdefault(entry.place, []).append(local)

    def of_step(self, step: int) -> list[Place]:
        """The places of a step, in the order in which their values come about."""
        places = [place for place in self.places if place.step == step]
        return sorted(
            places, key=lambda place: KINDS.index(place.kind)
        )  # sorted keeps the order within a kind

    def inputs(self, step: int) -> dict[Unit, dict[str, Tensor]]:
        """Tensors that the model got, whole: unit → name → tensor."""
        found: dict[Unit, dict[str, Tensor]] = {}
        for place in self.of_step(step):
            if place.kind == "input":
                for local in self.places[place]:
                    name = f"{place.name}/{place.call}/{place.item}"
                    found.setdefault(local.unit, {})[name] = local.value.data
        return found

    def micro_batches(self, step: int) -> int:
        """How many micro-batches the step has on the rank that has most."""
        return 1 + max((micro for _, micro in self.inputs(step)), default=0)


def ranks_text(ranks: Iterable[int], world_size: int) -> str:
    """Say which ranks are meant."""
    numbers = sorted(set(ranks))
    if len(numbers) == world_size:
        return "on all ranks" if world_size > 1 else "in the only process"
    if len(numbers) == 1:
        return f"on rank {numbers[0]}"
    return f"on ranks {', '.join(map(str, numbers))}"
