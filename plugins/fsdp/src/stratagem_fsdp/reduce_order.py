"""`ReduceOrder`: ends a run whose ranks would add up gradients of different parameters.

`fully_shard` reduces the gradients of a unit in one message, which leaves out parameters that this rank
hasn't used. A rank that used other parameters sends a message of another length: gloo aborts, and NCCL accepts it.
So each rank compares the gradients that it is about to reduce with those of the last time, as in `GatherOrder`. It
doesn't communicate as long as they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from stratagem import CombinationError
from stratagem.sdk.shards import number_of
from stratagem_fsdp.torch_private import has_gradient, reduced_groups
from stratagem_fsdp.unit_gradients import mark_accumulated

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from stratagem import Collectives

WAIT_S = 20.0
"""How long other ranks may take to reach the same reduction: they compute the backward before it."""


class ReduceOrder:
    """Compares with the other ranks which parameters of a unit have gradients, whenever that changes.

    Args:
        units: modules whose gradients are reduced separately.
        original_module: the user's module, whose names messages use.
        collectives: all ranks of the run.
        strategy: name of the strategy, for messages.
    """

    def __init__(
        self, units: Sequence[FSDPModule], original_module: nn.Module, collectives: Collectives, strategy: str
    ) -> None:
        self._collectives, self._strategy = collectives, strategy
        self._names = {id(parameter): name for name, parameter in original_module.named_parameters()}
        self._before: dict[int, tuple[bool, ...]] = {}
        self._groups = (
            [group for unit in units for group in reduced_groups(unit)] if collectives.world_size > 1 else []
        )
        for index, group in enumerate(self._groups):
            # patch: reductions
            group.post_backward = partial(self._about_to_reduce, index, group)

    def release(self) -> None:
        """Restore the units' own methods."""
        for group in self._groups:
            del group.post_backward
        self._groups.clear()

    def _about_to_reduce(self, index: int, group: Any, *unused: Any) -> None:
        if group.reduce_grads:
            have = tuple(map(has_gradient, group.fsdp_params))
            usual = self._before.get(index)
            if usual is None:
                usual = tuple([each.sharded_param.requires_grad for each in group.fsdp_params])
            if have != usual:
                self._ask(index, group, have, usual)
            self._before[index] = have
        type(group).post_backward(group, *unused)
        if not group.reduce_grads:
            mark_accumulated(group.fsdp_params)

    def _ask(self, index: int, group: Any, have: tuple[bool, ...], usual: tuple[bool, ...]) -> None:
        if self._collectives.all_arrive(f"reduce {index} {number_of(have)}", WAIT_S):
            return
        other = next(position for position, pair in enumerate(zip(have, usual)) if pair[0] != pair[1])
        name = self._names.get(id(group.fsdp_params[other].sharded_param), "a parameter")
        rank, has = self._collectives.rank, "a" if have[other] else "no"
        raise CombinationError(
            f"rank {rank} has {has} gradient of {name!r} in this step, and other ranks don't agree: under "
            f"{self._strategy} all ranks use the same parameters in a step. Use it on every rank, with an empty "
            "batch where it has no samples, or choose ddp with find_unused_parameters=True"
        )
