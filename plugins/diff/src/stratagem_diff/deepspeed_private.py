"""Where DeepSpeed's ZeRO keeps the shards that its optimizers step.

ZeRO steps flat tensors in float32, and names no public way from such a tensor to the parameters whose shards it has.
DeepSpeed's own `safe_get_full_grad` knows gradients before clipping, and none any more when the optimizer steps.
plugins/diff/tests/test_deepspeed_private.py fails when DeepSpeed changes this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stratagem_diff.values import Shard


@dataclass(frozen=True)
class ZeroShard:
    """This rank's shard of a parameter: a range of its elements, in a flat tensor that an optimizer steps."""

    flat: Tensor
    """What the optimizer steps."""
    at: int
    """Where the shard begins in `flat`."""
    begin: int
    """Where it begins among the parameter's elements."""
    numel: int
    """Number of elements; 0 where this rank has none of the parameter."""
    shape: tuple[int, ...]
    """Of the whole parameter."""

    def placed(self, flat: Tensor) -> tuple[Tensor, Shard]:
        """Return a tensor of the parameter's shape with this shard, and zeros where other ranks have theirs.

        Args:
            flat: of the shape of `self.flat`: itself, its gradient, or a state of the optimizer.
        """
        whole = torch.zeros(self.shape, dtype=flat.dtype)
        part = flat.detach().reshape(-1).narrow(0, self.at, self.numel)
        whole.view(-1).narrow(0, self.begin, self.numel).copy_(part)
        return whole, Shard(self.shape, tuple(0 for _ in self.shape), partial=True)


def is_partitioned(parameter: nn.Parameter) -> bool:
    """Whether a parameter has no values itself, as under ZeRO stage 3."""
    return hasattr(parameter, "ds_tensor")


def zero_shard(parameter: nn.Parameter) -> ZeroShard | None:
    """Return this rank's shard of a parameter; None where ZeRO doesn't shard it, or this rank has none of it."""
    optimizer = getattr(parameter, "_z3_optimizer", None)
    if optimizer is not None:
        return _of_stage_3(parameter, optimizer)
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        return None
    inner, outer = mapping.hp_fragment_address, mapping.lp_fragment_address
    flat = mapping.hp_fragment._base
    return ZeroShard(flat, inner.start, outer.start, inner.numel, tuple(parameter.shape))


def _of_stage_3(parameter: nn.Parameter, optimizer: Any) -> ZeroShard | None:
    position = optimizer.grad_position.get(optimizer.get_param_id(parameter))
    if position is None:  # frozen
        return None
    group, at, padded = position
    held: Any = parameter
    begin = dist.get_rank(held.ds_process_group) * held.ds_tensor.ds_numel
    numel = max(0, min(padded, held.ds_numel - begin))
    flat = optimizer.fp32_partitioned_groups_flat[group]
    return ZeroShard(flat, at, min(begin, held.ds_numel), numel, tuple(held.ds_shape))
