"""Keeps gradients of unsplit parameters equal on all ranks of a copy of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from stratagem import ConfigError
from stratagem.errors import GradientError
from stratagem_model_parallel.kinds import is_split, local
from stratagem_model_parallel.mesh import TENSOR

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FAR = 0.02
"""Relative difference of gradients above which rounding can't explain it."""


def is_same(tensor: torch.Tensor, group: Any) -> bool:
    """Whether all ranks of a group have the same values, up to rounding. Collective."""
    sizes = torch.tensor([tensor.numel(), -tensor.numel()], device=tensor.device)
    dist.all_reduce(sizes, dist.ReduceOp.MAX, group)
    if sizes[0] != -sizes[1]:
        return False
    values = tensor.detach().float()
    mean = values.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    apart = torch.stack([(values - mean).norm(), mean.norm()])
    dist.all_reduce(apart, dist.ReduceOp.MAX, group)
    far, norm = apart.tolist()
    return not far > FAR * norm + 1e-6  # NaN counts as equal: other checks look for NaN


class Replicas:
    """Completes gradients before they are clipped or used.

    Args:
        original_module: the user's module.
        mesh: with a dimension "tensor".
    """

    def __init__(self, original_module: nn.Module, mesh: DeviceMesh) -> None:
        self._group = mesh[TENSOR].get_group()
        self._size = mesh[TENSOR].size()
        self._names = {id(parameter): name for name, parameter in original_module.named_parameters()}
        self._looked: set[int] = set()

    def settle(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reduce partial gradients of split parameters, and average gradients of unsplit ones. Collective.

        Ranks of a copy compute gradients of unsplit parameters from the same activations. A device may round
        differently each time, so the gradients are averaged; otherwise the ranks' parameters would drift apart.

        Raises:
            ConfigError: gradients differ by more than rounding: the parameter acts on a shard of the activations.
        """
        for parameter in parameters:
            grad: Any = parameter.grad
            if (
                isinstance(parameter, DTensor)
                and grad is not None
                and grad.placements != parameter.placements
            ):
                parameter.grad = grad.redistribute(placements=parameter.placements)
        same = [p for p in parameters if p.grad is not None and not is_split(p)]
        for dtype in dict.fromkeys(p.dtype for p in same):
            self._average([p for p in same if p.dtype is dtype])

    def _average(self, parameters: list[torch.Tensor]) -> None:
        grads = [local(p.grad).detach() for p in parameters if p.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        if not flat.numel():
            return
        dist.all_reduce(flat, group=self._group)
        flat /= self._size
        averages = torch.split(flat, [grad.numel() for grad in grads])
        self._compare(parameters, grads, averages)
        for grad, average in zip(grads, averages):
            grad.copy_(average.view_as(grad))

    def _compare(
        self, parameters: list[torch.Tensor], grads: list[torch.Tensor], averages: Sequence[torch.Tensor]
    ) -> None:
        """Compare each parameter's gradients once: how a parameter is used doesn't change."""
        new = [at for at, parameter in enumerate(parameters) if id(parameter) not in self._looked]
        if not new:
            return
        apart = torch.stack([(grads[at].reshape(-1) - averages[at]).float().norm() for at in new])
        size = torch.stack([averages[at].float().norm() for at in new])
        both = torch.stack([apart, size])
        dist.all_reduce(both, dist.ReduceOp.MAX, self._group)
        for at, far, norm in zip(new, *both.tolist()):
            name = self._names.get(id(parameters[at]))
            if name is None:
                raise GradientError(
                    f"a parameter of shape {tuple(parameters[at].shape)} was added after setup(), so that its "
                    "gradient is this rank's own: add layers before setup(), and replace none after it"
                )
            self._looked.add(id(parameters[at]))
            if far > FAR * norm + 1e-6:
                raise ConfigError(
                    f"ranks that share a copy of the model have different gradients of {name!r}, which "
                    "each of them has whole, so that it acts on a part of the activations: name its module in "
                    'the plan, as "sequence" for a norm on shards of the sequence'
                )
