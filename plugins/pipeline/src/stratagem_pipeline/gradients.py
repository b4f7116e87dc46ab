"""Gradients of a copy's stages: summed where stages share a parameter, averaged over copies, limited together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from stratagem.collectives.connecting import quiet_connecting

if TYPE_CHECKING:
    from stratagem import Collectives

BUCKET = 8 * 2**20
"""Elements that are averaged in one message, at most."""


class Gradients:
    """The gradients of the parameters that this rank holds.

    Args:
        held: in an order that is the same on every rank that holds the same.
        holders: id(parameter) → the ranks of the copy that hold it, in order.
        pipe: the ranks of this copy.
        data: this rank and its like in every other copy.
    """

    def __init__(
        self,
        held: Sequence[nn.Parameter],
        holders: dict[int, tuple[int, ...]],
        shared_among: Sequence[tuple[int, ...]],
        pipe: Collectives,
        data: Collectives,
    ) -> None:
        self._held = [parameter for parameter in held if parameter.requires_grad]
        self._pipe, self._data = pipe, data
        self._own = {id(p) for p in held if holders[id(p)][0] == pipe.rank}
        self._shared: list[tuple[dist.ProcessGroup, list[nn.Parameter]]] = []
        for ranks in shared_among:
            group = _group_of(ranks, pipe, data)
            if pipe.rank in ranks:
                assert group is not None
                same = [parameter for parameter in self._held if holders[id(parameter)] == ranks]
                self._shared.append((group, same))

    def reduce(self) -> None:
        """Sum over stages, average over copies. Collective."""
        for group, parameters in self._shared:
            for flat in self._flat(parameters, group):
                dist.all_reduce(flat, group=group)
        if self._data.world_size > 1:
            for flat in self._flat(self._held, self._data.process_group):
                dist.all_reduce(flat, group=self._data.process_group)
                flat.div_(self._data.world_size)

    def _flat(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> Iterator[torch.Tensor]:
        """Yield gradients in large pieces, and take them back as they are then.

        One that any rank of the group has counts as zero where it isn't; one that none has stays none.
        """
        if not parameters:
            return
        device = parameters[0].device
        has_one = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8, device=device)
        dist.all_reduce(has_one, dist.ReduceOp.MAX, group=group)
        wanted = [parameter for parameter, some in zip(parameters, has_one.tolist()) if some]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([p.grad for p in wanted if p.grad is not None]):
            flat = torch.cat([grad.reshape(-1) for grad in bucket])
            yield flat
            for grad, part in zip(bucket, torch.split(flat, [grad.numel() for grad in bucket])):
                grad.copy_(part.view_as(grad))

    def clip_norm(
        self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float, device: torch.device
    ) -> torch.Tensor:
        """Limit the norm over all stages; a parameter that several hold counts once. Collective in the copy.

        Returns:
            The total norm before.
        """
        grads = [p.grad for p in parameters if p.grad is not None and id(p) in self._own]
        local = nn.utils.get_total_norm(grads, norm_type) if grads else torch.zeros((), device=device)
        norms = self._pipe.all_gather(local.to(device, torch.float64))
        total: torch.Tensor = torch.linalg.vector_norm(norms, norm_type).to(local.dtype)
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
        return total


def _buckets(grads: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    for dtype in dict.fromkeys(grad.dtype for grad in grads):
        bucket: list[torch.Tensor] = []
        for grad in (grad for grad in grads if grad.dtype == dtype):
            if bucket and sum(each.numel() for each in bucket) + grad.numel() > BUCKET:
                yield bucket
                bucket = []
            bucket.append(grad)
        if bucket:
            yield bucket


def _group_of(ranks: tuple[int, ...], pipe: Collectives, data: Collectives) -> dist.ProcessGroup | None:
    """Open the group of some ranks of every copy; return this copy's. Collective among all ranks."""
    if len(ranks) == pipe.world_size:
        group: dist.ProcessGroup = pipe.process_group
        return group
    mine = None
    for copy in range(data.world_size):
        members = [copy * pipe.world_size + rank for rank in ranks]
        with quiet_connecting():
            opened = dist.new_group(members)
        if copy == data.rank and pipe.rank in ranks:
            mine = opened
    return mine
