"""`OwnedStep`: lets an optimizer that needs whole tensors step the ones that this rank owns."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stratagem.sdk.states import common_states
from stratagem.sdk.torch_private import without_subclass_functions
from stratagem_sharding.torch_private import local_shard
from stratagem_sharding.whole_steps.owners import Owners
from stratagem_sharding.whole_steps.whole_step import WholeStep

__all__ = ["OwnedStep"]


class OwnedStep(WholeStep):
    """Lets an optimizer's `step` see whole tensors, each on one rank; all other code sees DTensors. Collective.

    Each sharded parameter has one owner rank, which steps it. In each step the other ranks send their shards of the
    parameter and its gradient to the owner, and the owner sends back shards of the stepped parameter. The owner keeps
    the parameter's state, whole: only that rank has it in `optimizer.state`.
    Every rank steps the parameters that aren't sharded. For optimizers that step each tensor separately;
    `optimizer_trial` finds that out by the cut "parameters".

    Args:
        optimizer: its groups and its state stay the same objects before and after each step.
        strategy: the strategy's name, for messages.

    Raises:
        ConfigError: the optimizer keeps parameters outside its groups.
    """

    needs = "whole tensors"

    def __init__(self, optimizer: Optimizer, strategy: str) -> None:
        super().__init__(optimizer, strategy)
        self._owners = Owners()
        self._stepped: list[DTensor] = []
        self._wholes: list[torch.Tensor | None] = []

    def _show_shards(self) -> None:
        optimizer, owners = self._optimizer, self._owners
        self._whole = [list(group["params"]) for group in optimizer.param_groups]
        self._state, self._owner = optimizer.state, {}
        sharded = [each for group in self._whole for each in group if isinstance(each, DTensor)]
        with torch.no_grad(), without_subclass_functions():
            owners.add(sharded)
            self._keep_own_states(sharded)
            gradients = {id(each): each.grad for each in sharded if each.grad is not None}
            self._stepped = [each for each in sharded if id(each) in gradients]
            values = owners.gather(self._stepped, self._stepped)
            grads = owners.gather(self._stepped, [gradients[id(each)] for each in self._stepped])
            shown: dict[int, nn.Parameter] = {}
            for parameter, value, grad in zip(self._stepped, values, grads):
                if value is not None:
                    shown[id(parameter)] = whole = self._seen.show(parameter, value, grad)
                    self._owner[whole] = parameter
            self._wholes = [shown.get(id(each)) for each in self._stepped]
            optimizer.state = defaultdict(dict, common_states(optimizer))
            for group, before in zip(optimizer.param_groups, self._whole):
                group["params"].clear()
                for each in before:
                    if isinstance(each, DTensor) and id(each) not in shown:
                        continue  # another rank steps it
                    seen = shown.get(id(each), each)
                    group["params"].append(seen)
                    if each in self._state:
                        optimizer.state[seen] = self._state[each]

    def _keep_own_states(self, sharded: list[DTensor]) -> None:
        """Gather states that were loaded as shards on their owners, and drop them on other ranks. Collective."""
        loaded: dict[str, list[DTensor]] = {}
        for parameter in sharded:
            for name, value in self._state.get(parameter, {}).items():
                if isinstance(value, DTensor):
                    loaded.setdefault(name, []).append(parameter)
        for name, parameters in loaded.items():
            values = self._owners.gather(parameters, [self._state[each][name] for each in parameters])
            for parameter, whole in zip(parameters, values):
                if whole is not None:
                    self._state[parameter][name] = whole
        for parameter in sharded:
            if not self._owners.owns(parameter):
                self._state.pop(parameter, None)

    def _show_dtensors(self) -> None:
        # Also after an exception: parameters that were stepped before it keep their new values, as in one process.
        self._restore()
        with torch.no_grad(), without_subclass_functions():
            for parameter, shard in zip(self._stepped, self._owners.scatter(self._stepped, self._wholes)):
                local_shard(parameter).copy_(shard)
            self._seen.empty()
        self._stepped, self._wholes = [], []
