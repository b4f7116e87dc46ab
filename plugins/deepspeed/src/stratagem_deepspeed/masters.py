"""What the engine steps instead of a module's parameters: kept equal to what people write into these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem_deepspeed.deepspeed_private import fragment_of
from stratagem_deepspeed.swapping import resident, sub_group_of

Scalars = dict[str, float]
"""What an optimizer counts in addition to tensors in a parameter's shape, such as its steps."""


def scalars_of(optimizer: Optimizer, flat: torch.Tensor, group: Mapping[str, Any]) -> Scalars | None:
    """Return what is counted for all parameters of a flat tensor; None before its first step.

    Args:
        optimizer: that steps it.
        flat: the tensor.
        group: the optimizer's group that has it; some of the engine's own optimizers count there.
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
    """Return the part of a flat tensor that belongs to a parameter; empty where this rank has none.

    Args:
        zero: the engine's optimizer.
        stage: 1, 2 or 3.
        flat: the group's flat tensor, or one of its states.
        parameter: one of the group's.
    """
    if stage == 3:
        _, begin, count = zero.grad_position[zero.get_param_id(parameter)]
        return flat.narrow(0, begin, count)
    address = fragment_of(parameter)
    if address is None:
        return flat.narrow(0, 0, 0)
    return flat.narrow(0, address.start, address.numel)


def follow_parameters(zero: Any) -> None:
    """Write into stage 1's and 2's 32-bit copies what has been written into parameters since the last step.

    A clamp or an average in place changes the parameters that the module computes with, which the engine's next step
    would write over from its copies.

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
                # Equal but for such changes, and quicker copied than compared.
                master.data.copy_(own)
                continue
            changed = own != master.data.to(own.device, own.dtype)
            master.data.copy_(torch.where(changed, own.to(master.dtype), master.data.to(own.device)))


class FlatViews:
    """Where parameters lie in the engine's flat tensors of stages 1 and 2.

    `parameter.data = tensor` takes a parameter out of them, and the engine would train and save the former values.

    Args:
        parameters: as the engine has laid them out.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._views = [(parameter, parameter.data) for parameter in parameters]

    @torch.no_grad()
    def put_back(self) -> None:
        """Copy into the flat tensors what has taken a parameter's place, and make the parameter a view again."""
        for parameter, view in self._views:
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter)
                parameter.data = view


def follow_partition(zero: Any, parameter: nn.Parameter, own: torch.Tensor) -> None:
    """Write into stage 3's 32-bit copy what has been written into a parameter.

    Args:
        zero: the engine's optimizer.
        parameter: one of those that it steps.
        own: this rank's part of the parameter, flat, filled up as the engine does.
    """
    with resident(zero, sub_group_of(zero, parameter)) as flat, torch.no_grad():
        master = master_slice(zero, 3, flat.data, parameter)
        new = own.to(master.device)
        changed = new != master.to(new.dtype)
        master.copy_(torch.where(changed, new.to(master.dtype), master))
