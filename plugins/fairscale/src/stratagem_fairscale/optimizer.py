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
    """FairScale's optimizer state sharding (OSS) around an existing optimizer.

    Each parameter is assigned as a whole to the rank with the fewest elements. Each rank steps its own parameters and
    then broadcasts them. The group dicts are shared with `whole`, so schedulers of `whole` also work here, and
    groups that are added to `whole` later are stepped, too. Construction and steps are collective.

    Args:
        whole: the user's optimizer over all parameters, of one dtype; must treat each parameter separately, as all of
            torch's but LBFGS do. Its states move here.

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
        # The same list object, so that a group that is added to `whole` is clipped and stepped here, too.
        self.param_groups = whole.param_groups
        self._shared_out = members_of(self.param_groups)
        self._own_names = frozenset(vars(self))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if not name.startswith("_") and name not in self.__dict__.get("_own_names", {name}):
            setattr(self.whole, name, value)  # an attribute of the user's optimizer class

    @property
    def owned(self) -> list[torch.Tensor]:
        """The parameters whose states this rank keeps."""
        self.include_added_groups()
        return [parameter for group in self.optim.param_groups for parameter in group["params"]]

    def owner_of(self, parameter: torch.Tensor) -> int:
        """Return the rank that steps a parameter."""
        return owner_of(self, parameter)

    def _local(self, groups: list[dict[str, Any]]) -> Optimizer:
        return optimizer_of_part(self.whole, groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as for any optimizer. It takes effect before the next forward."""
        Optimizer.add_param_group(self, param_group)

    def include_added_groups(self) -> None:
        """Assign the parameters of added groups to ranks.

        OSS itself would assign all parameters again, by which are trained now, and move earlier ones to other ranks.

        Raises:
            ConfigError: added parameters have another dtype, or the parameters of earlier groups have changed.
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
        """Set up buffers for all parameters that have ever been trained.

        OSS leaves out frozen parameters, even if one has an earlier gradient, with which its owner still steps it.
        """
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        self._trained.update(parameter for parameter in everything if parameter.requires_grad)
        with as_trained(self._trained):
            super()._setup_flat_buffers()

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step this rank's parameters, then broadcast every rank's parameters. Collective."""
        self.include_added_groups()
        if not all(buffer.holds_all() for buffer in parameter_buffers(self)):
            self._setup_flat_buffers()  # the user assigned `parameter.data`
        self.optim.state = self.state  # the user's code may have replaced the state
        copy_attributes(self.whole, self.optim)
        loss = super().step(closure and _evaluated_once(closure), **kwargs)
        copy_attributes(self.optim, self.whole)
        count_as_stepped(self.whole)
        return loss

    def clip_grad_norm(
        self, max_norm: float, norm_type: float = 2.0, filter_params_fn: Any = None
    ) -> torch.Tensor:
        """Clip by the norm over all ranks' gradients; each rank has those that it steps. Collective.

        It replaces OSS's method, which only counts the parameters that had a gradient at its first call, and
        computes in float32.

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
        """Refuse: no rank has all states, and this method may be called on one rank only.

        Raises:
            ConfigError: says how states are saved.
        """
        raise no_state_dict(self.whole, "fairscale_sharded")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load groups, and the states of parameters in `owned`. Positions count all parameters."""
        self.include_added_groups()
        load_part(self.param_groups, self.optim, state_dict)
        self.state = self.optim.state

    def release(self) -> None:
        """Give each parameter its own memory again."""
        for buffer in parameter_buffers(self):
            buffer.leave()


def _evaluated_once(closure: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap a closure to refuse a second evaluation, which would use other ranks' parameters of before the step."""
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
