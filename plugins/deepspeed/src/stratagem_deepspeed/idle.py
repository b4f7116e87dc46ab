"""Parameters without a gradient on any rank: plain torch leaves them as they are, and so does this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stratagem import CombinationError
from stratagem_deepspeed.masters import Scalars, master_slice, scalars_of

Values = dict[str, torch.Tensor]
"""Name of a state, or "" for the parameter → its part for one parameter."""


def used_anywhere(used: Sequence[bool], device: torch.device) -> list[bool]:
    """Return which are True on any rank. Collective.

    Args:
        used: as many on each rank.
        device: for what is sent.
    """
    mask = torch.tensor(used, dtype=torch.uint8, device=device)
    dist.all_reduce(mask, dist.ReduceOp.MAX)
    return [bool(there) for there in mask.tolist()]


class IdleParameters:
    """Puts back what an engine's step does to parameters without a gradient: it steps flat partitions of all of them.

    Args:
        zero: the engine's optimizer.
        stage: 1, 2 or 3.
        groups: parameters of each flat partition.
        flats: the partitions, in 32 bits.
        names: id of a parameter → its name.

    Attributes:
        active: ids of the parameters with a gradient in this step, on any rank; the same on all ranks.
        paused: name of a parameter that others of its flat partition have made steps without → what was counted for
            it when it had made its last; None if it has made none. The same on all ranks.
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
        """Refuse a step in which a parameter would be counted steps that it hasn't made.

        Raises:
            CombinationError: of the parameters whose steps are counted together, one has missed some.
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
        """Whether a parameter's first steps differ from later ones, so that each must have its own count."""
        optimizer = self._zero.optimizer
        return type(optimizer) is not torch.optim.SGD or any(g["dampening"] for g in optimizer.param_groups)

    def keep(self, index: int) -> bool:
        """Copy what the step of a partition mustn't change, and note who pauses.

        Returns:
            Whether any of its parameters has a gradient; if none has, don't step it.
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

    def put_back(self, index: int) -> None:
        """Write back what `keep` has copied."""
        for parameter, values in self._kept.pop(index, ()):
            for name, part in self._parts(index, parameter):
                if name in values:
                    part.copy_(values[name])
                else:
                    part.zero_()

    def keep_whole(self, index: int) -> None:
        """Copy all of a partition that can't be left out of the step, and what is counted for it."""
        flat = self._flats[index]
        state = self._zero.optimizer.state.get(flat)
        self._states[index] = None if state is None else {name: _copied(each) for name, each in state.items()}
        self._kept[index] = [
            (p, {name: part.clone() for name, part in self._parts(index, p)}) for p in self._groups[index]
        ]

    def put_back_whole(self, index: int) -> None:
        """Write back what `keep_whole` has copied."""
        flat = self._flats[index]
        self.put_back(index)
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
