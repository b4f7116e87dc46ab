"""`OwnedStep`: an optimizer that needs whole tensors steps those that this rank owns."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stratagem.errors import ConfigError
from stratagem.sdk.states import common_states
from stratagem.sdk.torch_private import without_subclass_functions
from stratagem_sharding.local_step import LocalStep
from stratagem_sharding.torch_private import local_shard
from stratagem_sharding.whole_steps.owners import Owners
from stratagem_sharding.whole_steps.seen_parameters import SeenParameters

__all__ = ["OwnedStep"]


class OwnedStep(LocalStep):
    """Lets an optimizer's `step` see whole tensors, each on one rank, while everyone else sees DTensors. Collective.

    Each sharded tensor has an owner, so that each is stepped once. In each step, shards of the parameter and of its
    gradient come to the owner, and shards of the stepped parameter go back. States stay with the owner, whole: they
    are in `optimizer.state` on that rank alone.

    What every rank has whole is stepped by every rank. For optimizers that step each tensor by itself, as
    `optimizer_trial` finds out by the cut "parameters".

    Args:
        optimizer: its groups are the same objects before and after each step, and so is its state.
        strategy: the strategy's name, for messages.

    Raises:
        ConfigError: the optimizer keeps parameters elsewhere than in its groups.
    """

    def __init__(self, optimizer: Optimizer, strategy: str) -> None:
        super().__init__(optimizer)
        if not self._is_active:
            raise ConfigError(
                f"{type(optimizer).__name__} needs whole tensors, which {strategy} brings to those in param_groups, "
                "and keeps parameters elsewhere, too: keep them there alone, or choose ddp"
            )
        self._owners, self._seen = Owners(), SeenParameters()
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
        """Bring states that a checkpoint has brought in shards to the owners, and drop other ranks'. Collective."""
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
        # Also after an exception: what the optimizer has stepped before it is stepped, as in one process.
        self._put_back()
        with torch.no_grad(), without_subclass_functions():
            for parameter, shard in zip(self._stepped, self._owners.scatter(self._stepped, self._wholes)):
                local_shard(parameter).copy_(shard)
            self._seen.empty()
        self._stepped, self._wholes = [], []

    def _put_back(self) -> None:
        """Give the optimizer the user's parameters again, and keep states under these."""
        optimizer = self._optimizer
        stepped, optimizer.state = optimizer.state, self._state
        for key, state in stepped.items():
            self._state[self._owner.get(key, key)] = state
        for group, whole in zip(optimizer.param_groups, self._whole):
            group["params"][:] = whole
        self._whole, self._state, self._owner = [], None, {}
