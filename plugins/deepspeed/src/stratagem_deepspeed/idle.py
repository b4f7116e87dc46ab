"""Leaves parameters that have no gradient on any rank unchanged, as plain PyTorch does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stratagem import CombinationError
from stratagem_deepspeed.masters import Scalars, master_slice, scalars_of

Values = dict[str, torch.Tensor]
"""Name of an optimizer state, or "" for the parameter → the slice of the flat tensor for one parameter."""


def used_anywhere(used: Sequence[bool], device: torch.device) -> list[bool]:
    """Return, for each element, whether it is True on any rank. Collective.

    Args:
        used: equally long on each rank.
        device: of the tensor that is sent.
    """
    mask = torch.tensor(used, dtype=torch.uint8, device=device)
    dist.all_reduce(mask, dist.ReduceOp.MAX)
    return [bool(there) for there in mask.tolist()]


class IdleParameters:
    """Undoes what an engine's step does to parameters without a gradient. The engine steps whole flat partitions.

    Args:
        zero: the engine's optimizer.
        stage: 1, 2 or 3.
        groups: parameters of each flat partition.
        flats: the partitions, in 32 bits.
        names: id of a parameter → its name.

    Attributes:
        active: ids of the parameters with a gradient in this step, on any rank; the same on all ranks.
        paused: name → counters. The names are of parameters that were left out of steps which others in their flat
            partition made. The counters are those at the parameter's last step; None if it made none. The same on
            all ranks.
    """

    def __init__(
        self,
        zero: Any,
        stage: int,
        groups: Sequence[Sequence[nn.Parameter]],
        flats: Sequence[torch.Tensor],
        names: Mapping[int, str],
    ) -> None:
        self._zero, self._stage, self._names = zero, stage, names
        self._groups, self._flats = groups, flats
        self.active: set[int] = set()
        self._kept: dict[int, list[tuple[nn.Parameter, Values]]] = {}
        self._states: dict[int, dict[str, Any] | None] = {}
        self.paused: dict[str, Scalars | None] = {}

    def check(self) -> None:
        """Refuse a step whose optimizer would count steps for a parameter that it didn't make.

        Raises:
            CombinationError: a parameter has missed steps that are counted for its whole group.
        """
        if not self._counts_steps():
            return
        for group in self._groups:
            for parameter in group:
                name = self._names[id(parameter)]
                if id(parameter) in self.active and name in self.paused:
                    raise CombinationError(
                        f"parameter {name!r} had no gradient in some of the steps before this "
                        f"one, and deepspeed counts {type(self._zero.optimizer).__name__}'s steps for all parameters "
                        "of a group: give it its own group in configure_optimizers, or choose SGD, or strategy "
                        "ddp or fsdp"
                    )

    def _counts_steps(self) -> bool:
        """Whether the update depends on the number of steps, so that each parameter needs its own count."""
        optimizer = self._zero.optimizer
        return type(optimizer) is not torch.optim.SGD or any(g["dampening"] for g in optimizer.param_groups)

    def keep(self, index: int) -> bool:
        """Copy the slices of a partition that the step mustn't change, and record which parameters pause.

        Returns:
            Whether any parameter of the partition has a gradient; if none has, don't step it.
        """
        idle = [p for p in self._groups[index] if id(p) not in self.active]
        if len(idle) == len(self._groups[index]):
            return False
        self._kept[index] = [(p, {name: part.clone() for name, part in self._parts(index, p)}) for p in idle]
        for parameter in self._groups[index]:
            name = self._names[id(parameter)]
            if id(parameter) in self.active:
                self.paused.pop(name, None)
            elif name not in self.paused:
                self.paused[name] = self._scalars(index)
        return True

    def _scalars(self, index: int) -> Scalars | None:
        optimizer = self._zero.optimizer
        place = self._zero.sub_group_to_group_id[index] if self._stage == 3 else index
        return scalars_of(optimizer, self._flats[index], optimizer.param_groups[place])

    def restore(self, index: int) -> None:
        """Write back the slices that `keep` has copied."""
        for parameter, values in self._kept.pop(index, ()):
            for name, part in self._parts(index, parameter):
                if name in values:
                    part.copy_(values[name])
                else:
                    part.zero_()

    def keep_whole(self, index: int) -> None:
        """Copy a whole partition that can't be left out of the step, with its counters."""
        flat = self._flats[index]
        state = self._zero.optimizer.state.get(flat)
        self._states[index] = None if state is None else {name: _copied(each) for name, each in state.items()}
        self._kept[index] = [
            (p, {name: part.clone() for name, part in self._parts(index, p)}) for p in self._groups[index]
        ]

    def restore_whole(self, index: int) -> None:
        """Write back the partition and counters that `keep_whole` has copied."""
        flat = self._flats[index]
        self.restore(index)
        state = self._states.pop(index)
        if state is None:
            self._zero.optimizer.state.pop(flat, None)
            return
        for name, value in state.items():
            now = self._zero.optimizer.state[flat][name]
            if not isinstance(value, torch.Tensor):
                self._zero.optimizer.state[flat][name] = value
            elif value.shape != flat.shape:
                now.copy_(value)

    def _parts(self, index: int, parameter: nn.Parameter) -> list[tuple[str, torch.Tensor]]:
        flat = self._flats[index]
        state: Mapping[str, Any] = self._zero.optimizer.state.get(flat, {})
        flat_states = {
            name: each
            for name, each in state.items()
            if isinstance(each, torch.Tensor) and each.shape == flat.shape
        }
        return [
            (name, master_slice(self._zero, self._stage, each, parameter))
            for name, each in {"": flat.detach(), **flat_states}.items()
        ]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
