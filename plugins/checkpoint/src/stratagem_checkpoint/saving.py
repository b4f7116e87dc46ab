"""The collective part of a save: who writes which chunk of which tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from stratagem.errors import CheckpointError
from stratagem_checkpoint.agreement import on_every_rank
from stratagem_checkpoint.safetensors_file import refusal
from stratagem_checkpoint.ties import find_aliases, local_ties

if TYPE_CHECKING:
    from stratagem import Collectives


@dataclass(frozen=True)
class AgreedPlan:
    """Equal on every rank, save for what the planner holds."""

    planner: DefaultSavePlanner
    plans: list[SavePlan]
    """One per rank: copies are written once, by the rank with the least to write."""
    metadata: Metadata
    aliases: Mapping[str, str]


def agree_on_plan(collectives: Collectives, tensors: Mapping[str, torch.Tensor]) -> AgreedPlan:
    """Divide the writing of `tensors` among all ranks. Collective; touches no file.

    The planners of torch.distributed.checkpoint do the dividing, but meet through `collectives`, so
    that this also works where the ranks have no torch process group.

    Raises:
        CheckpointError: a tensor that can't be saved, or of which ranks hold different shapes, or parts
            that don't make up the whole.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)

    def plan_locally() -> tuple[dict[str, int], SavePlan]:
        for key, tensor in tensors.items():
            _check_savable(key, tensor)
        planner.set_up_planner(dict(tensors), is_coordinator=collectives.rank == 0)
        return local_ties(tensors), planner.create_local_plan()

    gathered = on_every_rank(collectives, plan_locally)
    aliases = find_aliases([ties for ties, _ in gathered])
    plans = [SavePlan([item for item in plan.items if item.index.fqn not in aliases]) for _, plan in gathered]
    _check_shapes(plans)
    try:
        # Every rank computes the same from the same, which saves sending the plans back.
        plans, metadata = planner.create_global_plan(plans)
    except (ValueError, AssertionError) as error:
        raise CheckpointError(f"the tensors of all ranks don't make up whole tensors: {error}") from error
    planner.finish_plan(plans[collectives.rank])
    return AgreedPlan(planner, plans, metadata, aliases)


def _check_savable(key: str, tensor: object) -> None:
    if not isinstance(key, str):
        raise CheckpointError(f"the key {key!r} of a tensor is a {type(key).__name__}; allowed are strings")
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointError(
            f"{key!r} can't be saved as a tensor: it is a {type(tensor).__name__}; put it into the checkpoint's state"
        )
    reason = refusal(tensor)
    if isinstance(tensor, DTensor):
        partial = [str(each) for each in tensor.placements if each.is_partial()]
        reason = reason or (f"has the placement {partial[0]}; redistribute it first" if partial else None)
    elif type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        reason = f"is a {type(tensor).__name__}; allowed are plain tensors and DTensors"
    if reason:
        raise CheckpointError(f"tensor {key!r} can't be saved: it {reason}")


def _check_shapes(plans: list[SavePlan]) -> None:
    seen: dict[str, tuple[int, tuple[object, object]]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            if item.tensor_data is None:
                continue
            data = (tuple(item.tensor_data.size), item.tensor_data.properties.dtype)
            first, expected = seen.setdefault(item.index.fqn, (rank, data))
            if data != expected:
                raise CheckpointError(
                    f"tensor {item.index.fqn!r} is {expected[1]} {expected[0]} on rank {first} but "
                    f"{data[1]} {data[0]} on rank {rank}; it must be the same on all ranks"
                )
