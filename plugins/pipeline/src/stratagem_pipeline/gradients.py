"""Gradients of a pipeline: summed where stages share a parameter, averaged over copies, clipped by one norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets, gradients_of_any
from torch import nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from stratagem import Collectives


class Gradients:
    """The gradients of the parameters that this rank holds.

    Args:
        held: the parameters, in the same order on all ranks that hold the same ones.
        holders: id(parameter) → the ranks of the copy that hold it, in order.
        shared_among: the sets of ranks in a copy that share parameters; the same list on all ranks.
        pipe: the ranks of this copy.
        data: the ranks with the same stages in all copies; None if other code averages over them.
        open_group: opens a group of some ranks in each copy, and returns this rank's group.
    """

    def __init__(
        self,
        held: Sequence[nn.Parameter],
        holders: dict[int, tuple[int, ...]],
        shared_among: Sequence[tuple[int, ...]],
        pipe: Collectives,
        data: Collectives | None,
        open_group: Callable[[Sequence[int]], Any],
    ) -> None:
        self._held = [parameter for parameter in held if parameter.requires_grad]
        self._pipe, self._data = pipe, data
        self._own = {id(p) for p in held if holders[id(p)][0] == pipe.rank}
        self._shared: list[tuple[dist.ProcessGroup, list[nn.Parameter]]] = []
        for ranks in shared_among:
            group = pipe.process_group
            if len(ranks) < pipe.world_size:
                group = open_group(ranks)
            if pipe.rank in ranks:
                same = [parameter for parameter in self._held if holders[id(parameter)] == ranks]
                self._shared.append((group, same))

    def reduce(self) -> None:
        """Sum over stages, average over copies. Collective."""
        for group, parameters in self._shared:
            for flat in _gradients(parameters, group):
                dist.all_reduce(flat, group=group)
        if self._data is not None and self._data.world_size > 1:
            for flat in _gradients(self._held, self._data.process_group):
                dist.all_reduce(flat, group=self._data.process_group)
                flat.div_(self._data.world_size)

    def clip_norm(
        self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float, device: torch.device
    ) -> torch.Tensor:
        """Clip by the norm over all stages. A shared parameter counts once. Collective in the copy.

        Returns:
            The total norm before.
        """
        own = by_kind(p for p in parameters if p.grad is not None and id(p) in self._own)
        grads = [[p.grad for p in each if p.grad is not None] for each in own]
        # The norm of a DTensor counts each element of the full tensor once.
        norms = [_whole(nn.utils.get_total_norm(each, norm_type)).to(device) for each in grads]
        local = _norm_of(norms, norm_type) if norms else torch.zeros((), device=device)
        total = _norm_of(list(self._pipe.all_gather(local.to(torch.float64))), norm_type).to(local.dtype)
        for each in by_kind(parameters):
            nn.utils.clip_grads_with_norm_(each, max_norm, total)
        return total


def by_kind(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters so that torch's functions accept each group: ordinary ones, and DTensors by mesh."""
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = parameter.device_mesh if isinstance(parameter, DTensor) else None
        kinds.setdefault(kind, []).append(parameter)
    return list(kinds.values())


def _norm_of(norms: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    if len(norms) == 1:
        return norms[0]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return total


def _whole(norm: torch.Tensor) -> torch.Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _gradients(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> Iterator[torch.Tensor]:
    """Yield flat buckets of the gradients that any rank of the group has. A gradient that no rank has stays None."""
    if not parameters:
        return iter(())
    has_one = [parameter.grad is not None for parameter in parameters]
    gradients = gradients_of_any(parameters, has_one, parameters[0].device, group)
    return flattened_buckets(each.to_local() if isinstance(each, DTensor) else each for each in gradients)


def backward_before(
    entries: Iterable[tuple[Any, tuple[torch.Tensor, ...]]], leaves: Iterable[tuple[torch.Tensor, ...]]
) -> None:
    """Run backward through the step's code before the pipelined module."""
    outputs, grads = [], []
    for (_, tensors), given in zip(entries, leaves):
        for tensor, leaf in zip(tensors, given):
            if leaf.grad is not None:
                outputs.append(tensor)
                grads.append(leaf.grad[: tensor.shape[0]])
    if outputs:
        torch.autograd.backward(outputs, grads)
