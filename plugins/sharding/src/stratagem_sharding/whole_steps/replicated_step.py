"""`ReplicatedStep`: lets an optimizer that needs all parameters at once step them on every rank."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stratagem.sdk.states import common_states
from stratagem.sdk.torch_private import without_subclass_functions
from stratagem_sharding.whole_steps.whole_step import WholeStep
from stratagem_sharding.whole_tensors.gathering import gather_without_agreement, write

__all__ = ["ReplicatedStep"]


class ReplicatedStep(WholeStep):
    """Lets an optimizer's `step` see all tensors whole; all other code sees DTensors. Collective.

    Every rank steps all parameters as a single process would, and keeps its shards of the result. States are whole on
    every rank, so the optimizer takes as much memory as under ddp.

    Args:
        optimizer: as for `LocalStep`.
        strategy: the strategy's name, for messages.

    Raises:
        ConfigError: the optimizer keeps parameters outside its groups.
    """

    needs = "all parameters at once"

    def __init__(self, optimizer: Optimizer, strategy: str) -> None:
        super().__init__(optimizer, strategy)
        self._operation = f"a step of {type(optimizer).__name__}"

    def _show_shards(self) -> None:
        optimizer = self._optimizer
        self._whole = [list(group["params"]) for group in optimizer.param_groups]
        self._state, self._owner = optimizer.state, {}
        optimizer.state = defaultdict(dict, common_states(optimizer))
        for group, before in zip(optimizer.param_groups, self._whole):
            group["params"][:] = [self._gathered(each) for each in before]
            for seen, parameter in zip(group["params"], before):
                if parameter in self._state:
                    optimizer.state[seen] = state = self._state[parameter]
                    state.update({key: self._whole_value(value) for key, value in state.items()})

    def _gathered(self, parameter: torch.Tensor) -> torch.Tensor:
        if not isinstance(parameter, DTensor):
            return parameter
        grad = None if parameter.grad is None else self._whole_value(parameter.grad)
        seen = self._seen.show(parameter, self._whole_value(parameter), grad)
        self._owner[seen] = parameter
        return seen

    def _whole_value(self, value: Any) -> Any:
        """Return a gradient or state value as a whole tensor. States loaded from a checkpoint are shards."""
        return gather_without_agreement(value, self._operation) if isinstance(value, DTensor) else value

    def _show_dtensors(self) -> None:
        # Also after an exception: parameters that were stepped before it keep their new values, as in one process.
        owner = self._owner
        self._restore()
        with torch.no_grad(), without_subclass_functions():
            for seen, parameter in owner.items():
                write(parameter, seen)
            self._seen.empty()
