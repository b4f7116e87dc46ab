"""The engine's 32-bit copies of parameters: kept equal to values that your code writes into the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem_deepspeed.deepspeed_private import fragment_of
from stratagem_deepspeed.swapping import resident, sub_group_of

Scalars = dict[str, float]
"""An optimizer's scalar states for a parameter, such as its number of steps."""


def scalars_of(optimizer: Optimizer, flat: torch.Tensor, group: Mapping[str, Any]) -> Scalars | None:
    """Return the scalar states of a flat tensor, which all of its parameters share; None before its first step.

    Args:
        optimizer: steps the flat tensor.
        flat: the tensor.
        group: the optimizer's group with the tensor; some of the engine's own optimizers count steps there.
    """
    state = optimizer.state.get(flat)
    if not state:
        return None
    found = {
        name: float(value)
        for name, value in state.items()
        if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.shape != flat.shape)
    }
    if "step" in group:
        found.setdefault("step", float(group["step"]))
    return found


def master_slice(zero: Any, stage: int, flat: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Return the slice of a flat tensor that belongs to a parameter; empty if this rank has no part of it.

    Args:
        zero: the engine's optimizer.
        stage: 1, 2 or 3.
        flat: the group's flat tensor, or one of its states.
        parameter: a parameter of the group.
    """
    if stage == 3:
        _, begin, count = zero.grad_position[zero.get_param_id(parameter)]
        return flat.narrow(0, begin, count)
    address = fragment_of(parameter)
    if address is None:
        return flat.narrow(0, 0, 0)
    return flat.narrow(0, address.start, address.numel)


def follow_parameters(zero: Any) -> None:
    """Copy changes to parameters since the last step into the 32-bit copies of stages 1 and 2.

    An in-place clamp or average changes only the parameters that the module computes with. The engine's next step
    would overwrite them from its copies.

    Args:
        zero: the engine's optimizer.
    """
    import torch.distributed as dist

    if hasattr(zero, "bf16_partitioned_groups"):
        partitions = zip(zero.bf16_partitioned_groups, zero.fp32_groups_flat_partition)
    else:
        partitions = zip(zero.parallel_partitioned_bit16_groups, zero.single_partition_of_fp32_groups)
    with torch.no_grad():
        for index, (parts, master) in enumerate(partitions):
            own = parts[dist.get_rank(group=zero.real_dp_process_group[index])]
            if own.dtype == master.dtype:
                # Without rounding, the two differ only by such changes, and a copy is faster than a comparison.
                master.data.copy_(own)
                continue
            changed = own != master.data.to(own.device, own.dtype)
            master.data.copy_(torch.where(changed, own.to(master.dtype), master.data.to(own.device)))


class FlatViews:
    """Remembers where parameters lie in the engine's flat tensors of stages 1 and 2.

    `parameter.data = tensor` detaches a parameter from them, and the engine would train and save the old values.

    Args:
        parameters: as the engine has laid them out.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._views = [(parameter, parameter.data) for parameter in parameters]

    @torch.no_grad()
    def restore(self) -> None:
        """Copy assigned data into the flat tensors, and make each parameter a view of them again."""
        for parameter, view in self._views:
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter)
                parameter.data = view


def follow_partition(zero: Any, parameter: nn.Parameter, own: torch.Tensor) -> None:
    """Copy changes to a parameter into its 32-bit copy of stage 3.

    Args:
        zero: the engine's optimizer.
        parameter: one of those that it steps.
        own: this rank's flat shard of the parameter, padded as the engine pads it.
    """
    with resident(zero, sub_group_of(zero, parameter)) as flat, torch.no_grad():
        master = master_slice(zero, 3, flat.data, parameter)
        new = own.to(master.device)
        changed = new != master.to(new.dtype)
        master.copy_(torch.where(changed, new.to(master.dtype), master))
