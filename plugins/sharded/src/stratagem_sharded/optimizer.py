"""`ShardedOptimizer`: the user's optimizer, of whose states each rank keeps a part."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from stratagem_sharding.part_of_optimizer import (
    copy_attributes,
    load_part,
    members_of,
    no_state_dict,
    optimizer_of_part,
    refuse_other_members,
    refuse_replaced_step,
)
from stratagem_sharding.torch_private import count_as_stepped
from torch.optim import Optimizer

from stratagem import ConfigError
from stratagem_sharded.torch_private import (
    broadcast_parameters,
    finish_partition,
    move_step_hooks,
    partition_again,
)

with warnings.catch_warnings():
    # Importing it, torch warns about its use of torch.jit.
    warnings.filterwarnings("ignore", r".*torch\.jit", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """torch's ZeroRedundancyOptimizer around an optimizer that exists already.

    Parameters are distributed whole, the largest first to the rank that has least. Each rank steps its
    own, then sends them to the others. It has the very group dicts of `whole`, so that schedulers made
    over `whole` change what is stepped; groups that are added to `whole` later are stepped, too.
    Collective to construct and to step.

    Args:
        whole: the user's optimizer over all parameters; must treat each parameter separately, as all of
            torch's but LBFGS do. Its states are taken over, then dropped there.
        as_bucket_view: keep the parameters of a rank in one buffer, which is then sent in one collective.

    Attributes:
        state: of the parameters in `owned` alone.

    Raises:
        ConfigError: no group has a parameter.
    """

    def __init__(self, whole: Optimizer, *, as_bucket_view: bool = False) -> None:
        self.whole = whole
        refuse_replaced_step(whole, "ddp_sharded")
        if not any(group["params"] for group in whole.param_groups):
            raise ConfigError(
                f"{type(whole).__name__} has no parameters, and torch's ZeroRedundancyOptimizer takes their device: "
                "set it up once it has some, or choose ddp"
            )
        super().__init__(
            whole.param_groups,
            optimizer_class=self._local,  # type: ignore[arg-type]  # anything that makes an optimizer
            parameters_as_bucket_view=as_bucket_view,
        )
        self.defaults = whole.defaults
        self.state = self.optim.state
        whole.state.clear()
        # The very list, so that a group that is added to `whole` is clipped and stepped here, too.
        self.param_groups = whole.param_groups
        # Hooks get all groups, and post-hooks the parameters that all ranks have stepped.
        move_step_hooks(whole, self.optim, self)
        self._shared_out = members_of(self.param_groups)
        self._own_names = frozenset(vars(self))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name not in self.__dict__.get("_own_names", {name}):
            setattr(self.whole, name, value)  # a setting of the user's class

    def __getattr__(self, name: str) -> Any:
        if "whole" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self.whole, name)
        if isinstance(value, MethodType):
            raise ConfigError(
                f"{type(self.whole).__name__}.{name} was called under ddp_sharded, where each rank has the states of "
                "some parameters: step by step(), or choose ddp"
            )
        return value

    @property
    def owned(self) -> list[torch.Tensor]:
        """The parameters whose states this rank keeps."""
        self._include_added_groups()
        return [parameter for group in self.optim.param_groups for parameter in group["params"]]

    def _local(self, groups: list[dict[str, Any]]) -> Optimizer:
        return optimizer_of_part(self.whole, groups)

    def _include_added_groups(self) -> None:
        """Partition the parameters of groups that were added to `whole`. Earlier ones stay with their ranks."""
        refuse_other_members(self.param_groups, self._shared_out, "ddp_sharded")
        count = len(self.optim.param_groups)
        if len(self.param_groups) == count:
            return
        added = partition_again(self)[count:]
        self.optim.param_groups.extend(added)
        for parameter in (each for group in added for each in group["params"]):
            if parameter in self.whole.state:
                self.optim.state[parameter] = self.whole.state[parameter]
        self.whole.state.clear()
        finish_partition(self)
        self._shared_out = members_of(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if "_shared_out" in self.__dict__:  # ZeroRedundancyOptimizer's constructor adds each group
            refuse_other_members(self.param_groups, self._shared_out, "ddp_sharded")
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step this rank's parameters, then broadcast each rank's to all. Collective."""
        self._include_added_groups()
        # The user's code may have replaced the states, as by `optimizer.state = defaultdict(dict)`.
        self.optim.state = self.state
        copy_attributes(self.whole, self.optim)
        loss = super().step(closure and self._in_step_with_others(closure), **kwargs)
        copy_attributes(self.optim, self.whole)
        count_as_stepped(self.whole)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.whole.zero_grad(set_to_none)

    def _in_step_with_others(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return `closure`, which computes with what each rank has made of its parameters since the last call."""
        has_evaluated = False

        def evaluate() -> Any:
            nonlocal has_evaluated
            if has_evaluated:
                broadcast_parameters(self)
            has_evaluated = True
            return closure()

        return evaluate

    def state_dict(self) -> dict[str, Any]:
        """Refuse: no rank has all states, and the loop of one rank alone may ask.

        Raises:
            ConfigError: says how states are saved.
        """
        raise no_state_dict(self.whole, "ddp_sharded")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load groups, and of the states those of `owned`; positions count all parameters."""
        self._include_added_groups()
        load_part(self.param_groups, self.optim, state_dict)
        self.state = self.optim.state
