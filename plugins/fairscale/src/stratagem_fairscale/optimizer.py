"""`ShardedOptimizer`: FairScale's OSS around the user's optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from fairscale.optim import OSS
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
from torch import nn
from torch.optim import Optimizer

from stratagem import ConfigError
from stratagem_fairscale.fairscale_private import (
    as_trained,
    forget_owners,
    owner_of,
    parameter_buffers,
)


class ShardedOptimizer(OSS):  # type: ignore[misc]  # FairScale has no types
    """OSS, the optimizer state sharding of FairScale, around an optimizer that exists already.

    Parameters are distributed whole, each to the rank that has least. Each rank steps its own, then sends them to the
    others. It has the very group dicts of `whole`, so that schedulers made over `whole` change what is stepped;
    groups that are added to `whole` later are stepped, too. Collective to construct and to step.

    Args:
        whole: the user's optimizer over all parameters, of one dtype; must treat each parameter separately, as all of
            torch's but LBFGS do. Its states are taken over, then dropped there.

    Attributes:
        state: of the parameters in `owned` alone.
    """

    def __init__(self, whole: Optimizer) -> None:
        refuse_replaced_step(whole, "fairscale_sharded")
        if type(whole).zero_grad is not Optimizer.zero_grad:
            raise ConfigError(
                f"{type(whole).__name__} overrides zero_grad, and under fairscale_sharded each rank has the "
                "gradients of its own parameters alone: call what it does in your loop, or choose ddp"
            )
        self.whole = whole
        self._trained: set[torch.Tensor] = set()
        super().__init__(whole.param_groups, optim=self._local)
        self.defaults = whole.defaults
        self.state = self.optim.state
        whole.state.clear()
        # The very list, so that a group that is added to `whole` is clipped and stepped here, too.
        self.param_groups = whole.param_groups
        self._shared_out = members_of(self.param_groups)
        self._own_names = frozenset(vars(self))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if not name.startswith("_") and name not in self.__dict__.get("_own_names", {name}):
            setattr(self.whole, name, value)  # a setting of the user's class

    @property
    def owned(self) -> list[torch.Tensor]:
        """The parameters whose states this rank keeps."""
        self.include_added_groups()
        return [parameter for group in self.optim.param_groups for parameter in group["params"]]

    def owner_of(self, parameter: torch.Tensor) -> int:
        """The rank that steps a parameter."""
        return owner_of(self, parameter)

    def _local(self, groups: list[dict[str, Any]]) -> Optimizer:
        return optimizer_of_part(self.whole, groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as to any optimizer; it is applied before the next forward, as one added to `whole`."""
        Optimizer.add_param_group(self, param_group)

    def include_added_groups(self) -> None:
        """Share out the parameters of groups that were added.

        OSS shares all of them out again, by which of them are trained now: earlier ones would change their rank.

        Raises:
            ConfigError: they have another dtype, or the parameters of earlier groups have changed.
        """
        refuse_other_members(self.param_groups, self._shared_out, "fairscale_sharded")
        added = self.param_groups[len(self.optim.param_groups) :]
        if not added:
            return
        dtype = self.param_groups[0]["params"][0].dtype
        for parameter in (each for group in added for each in group["params"]):
            if parameter.dtype != dtype:
                raise ConfigError(
                    f"a group with a parameter of {parameter.dtype} was added to {type(self.whole).__name__}, whose "
                    f"others are {dtype}, and fairscale_sharded takes one dtype for each optimizer: choose ddp"
                )
        shares = self.partition_parameters()
        sizes = [sum(p.numel() for group in share for p in group["params"]) for share in shares]
        for group in added:
            parts: list[list[torch.Tensor]] = [[] for _ in shares]
            for parameter in group["params"]:
                rank = sizes.index(min(sizes))
                parts[rank].append(parameter)
                sizes[rank] += parameter.numel()
            for share, part in zip(shares, parts):
                share.append({**group, "params": part})
            for parameter in shares[self.rank][-1]["params"]:
                if parameter in self.whole.state:
                    self.optim.state[parameter] = self.whole.state[parameter]
        self.optim.param_groups = shares[self.rank]
        self.whole.state.clear()
        self._shared_out = members_of(self.param_groups)
        forget_owners(self, shares)
        self.refresh_trainable()

    def _setup_flat_buffers(self) -> None:
        """Let the ranks send what has ever been trained.

        OSS leaves out what is frozen at the time, also if it has a gradient of before, with which its owner steps it.
        """
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        self._trained.update(parameter for parameter in everything if parameter.requires_grad)
        with as_trained(self._trained):
            super()._setup_flat_buffers()

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step this rank's parameters, then broadcast each rank's to all. Collective."""
        self.include_added_groups()
        if not all(buffer.holds_all() for buffer in parameter_buffers(self)):
            self._setup_flat_buffers()  # the user gave a parameter other data: `parameter.data = …`
        self.optim.state = self.state  # the user's code may have replaced them
        copy_attributes(self.whole, self.optim)
        loss = super().step(closure and _evaluated_once(closure), **kwargs)
        copy_attributes(self.optim, self.whole)
        count_as_stepped(self.whole)
        return loss

    def clip_grad_norm(
        self, max_norm: float, norm_type: float = 2.0, filter_params_fn: Any = None
    ) -> torch.Tensor:
        """Limit the norm of all ranks' gradients, of which each rank has those that it steps. Collective.

        As OSS does, which counts for ever the parameters that had a gradient at the first call, and computes in
        float32.

        Returns:
            The norm before, a scalar.
        """
        own = [p for p in self.owned if p.grad is not None]
        dtype = next((p.dtype for group in self.param_groups for p in group["params"]), torch.float32)
        device = self.param_groups[0]["params"][0].device
        norm = nn.utils.get_total_norm([p.grad for p in own if p.grad is not None], norm_type)
        norm = norm.to(device, dtype.to_real() if dtype.is_complex else dtype)
        if norm_type == torch.inf:
            dist.all_reduce(norm, dist.ReduceOp.MAX)
        else:
            norm = norm**norm_type
            dist.all_reduce(norm)
            norm = norm ** (1.0 / norm_type)
        nn.utils.clip_grads_with_norm_(own, max_norm, norm)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Refuse: no rank has all states, and the loop of one rank alone may ask.

        Raises:
            ConfigError: says how states are saved.
        """
        raise no_state_dict(self.whole, "fairscale_sharded")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load groups, and of the states those of `owned`; positions count all parameters."""
        self.include_added_groups()
        load_part(self.param_groups, self.optim, state_dict)
        self.state = self.optim.state

    def release(self) -> None:
        """Give each parameter its own memory again."""
        for buffer in parameter_buffers(self):
            buffer.leave()


def _evaluated_once(closure: Callable[[], Any]) -> Callable[[], Any]:
    """Return `closure`, which refuses a second evaluation: parameters of other ranks would be those of before."""
    has_evaluated = False

    def evaluate() -> Any:
        nonlocal has_evaluated
        if has_evaluated:
            raise ConfigError(
                "an optimizer evaluated its closure twice in a step, and under fairscale_sharded the other ranks' "
                "parameters aren't there until the step is over: choose ddp_sharded or ddp"
            )
        has_evaluated = True
        return closure()

    return evaluate
