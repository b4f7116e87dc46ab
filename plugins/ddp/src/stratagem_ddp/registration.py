"""Registers a strategy's communication hook, and sets up averages of parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, Optimizer

from stratagem import Collectives, ConfigError, SetupRequest
from stratagem_ddp.comm_hooks import HOOKS, power_sgd, renamed, settings_of
from stratagem_ddp.local_sgd import (
    Level,
    LocalSGD,
    check_levels,
    derived_levels,
    fitting_levels,
    fitting_subgroup,
)
from stratagem_ddp.power_sgd import PowerSGDMemory
from stratagem_ddp.torch_private import LEFT_OUT, left_out

if TYPE_CHECKING:
    from stratagem_ddp.strategy import DDPStrategy


def hook_state(strategy: DDPStrategy, module: nn.Module, collectives: Collectives) -> Any:
    """Return the state of the strategy's hook: the user's own object, or one for a named hook. Collective."""
    hook, given = strategy.ddp_comm_hook, strategy.ddp_comm_state
    if not isinstance(hook, str):
        if hook is powerSGD_hook and isinstance(given, PowerSGDState):
            return _memory(given, module)
        return given
    settings = settings_of(hook, given if isinstance(given, Mapping) else {})
    if hook == "powersgd":
        return _memory(PowerSGDState(process_group=None, **settings), module)
    if hook != "post_local_sgd":
        return None
    size = _subgroup_size(strategy, collectives)
    return PostLocalSGDState(  # type: ignore[no-untyped-call]  # torch has no types for it
        process_group=None,
        subgroup=(_group_of(strategy, size) or dist.group.WORLD) if size > 1 else None,
        start_localSGD_iter=settings["start_localSGD_iter"],
        post_local_gradient_allreduce=size > 1,
    )


def refuse_own_parameters(module: nn.Module) -> None:
    """Refuse parameters that the user excludes from averaging.

    Raises:
        ConfigError: the module has the attribute that excludes parameters from DistributedDataParallel.
    """
    ignored = left_out(module)
    if ignored:
        raise ConfigError(
            f"{type(module).__name__} asks for {ignored[0]!r} to differ between ranks "
            f"({LEFT_OUT}), and under ddp all ranks train the same parameters, of which a "
            "checkpoint has one copy: leave the attribute out"
        )


def register(strategy: DDPStrategy, ddp: DistributedDataParallel, state: Any) -> None:
    """Make `ddp` reduce its buckets with the strategy's hook."""
    hook = (
        HOOKS[strategy.ddp_comm_hook] if isinstance(strategy.ddp_comm_hook, str) else strategy.ddp_comm_hook
    )
    if hook is None:
        return
    if isinstance(state, PowerSGDMemory):
        hook = power_sgd
    if strategy.ddp_comm_wrapper is not None:
        hook = strategy.ddp_comm_wrapper(hook)
    if hook.__name__.startswith("bf16_compress") and dist.get_backend() == "gloo":
        hook = renamed(hook)
    ddp.register_comm_hook(state, hook)


def local_sgd(
    strategy: DDPStrategy, module: nn.Module, state: Any, collectives: Collectives
) -> LocalSGD | None:
    """Return the object that averages parameters after steps; None without such averages. Collective."""
    if strategy.model_averaging_period is None and strategy.period_group_size is None:
        return None
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    warm_up = getattr(state, "start_localSGD_iter", 0)
    drifts = isinstance(state, PostLocalSGDState)
    groups = [(level.period, _group_of(strategy, level.size)) for level in _levels(strategy, collectives)]
    return LocalSGD(parameters, groups, warm_up, drifts)


def refuse_unfit(request: SetupRequest, optimizers: tuple[Optimizer, ...], state: Any) -> None:
    """Refuse combinations that would silently train wrongly.

    Raises:
        ConfigError: names what can't be combined with PowerSGD or local SGD, and what to use instead.
    """
    remembers = isinstance(state, PowerSGDMemory) and state.state.use_error_feedback
    local = isinstance(state, PostLocalSGDState)
    if (remembers or local) and request.precision.scales_loss:
        what = (
            "PowerSGD's error feedback would keep"
            if remembers
            else "under local SGD only some ranks would skip"
        )
        raise ConfigError(
            f"precision {request.precision.name!r} scales the loss until a gradient overflows, which {what}: choose "
            "bf16-mixed or 32-true"
        )
    if isinstance(state, PowerSGDMemory):
        scalars = [
            name for name, p in request.original_module.named_parameters() if p.requires_grad and p.ndim == 0
        ]
        if scalars:
            raise ConfigError(
                f"PowerSGD sees each gradient as a matrix, and parameter {scalars[0]!r} has no "
                "dimension: give it shape (1,)"
            )
    for optimizer in optimizers if local else ():
        if isinstance(optimizer, LBFGS) or _is_zero(optimizer):
            raise ConfigError(
                f"local SGD steps each replica independently, and {type(optimizer).__name__} needs all ranks in one "
                "step: choose SGD, AdamW or another optimizer that steps on each rank, or strategy ddp"
            )


def _is_zero(optimizer: Optimizer) -> bool:
    # By name, since importing the class is slow and warns.
    return any(cls.__name__ == "ZeroRedundancyOptimizer" for cls in type(optimizer).__mro__)


def _memory(state: PowerSGDState, module: nn.Module) -> PowerSGDMemory:
    return PowerSGDMemory(state, {id(parameter): name for name, parameter in module.named_parameters()})


def _group_of(strategy: DDPStrategy, size: int) -> dist.ProcessGroup | None:
    """Return this rank's group of `size` neighbours; None for all ranks. Collective."""
    world_size = dist.get_world_size()
    if size == world_size:
        return None
    group: dist.ProcessGroup = strategy.open_group(
        [range(start, start + size) for start in range(0, world_size, size)]
    )
    return group


def _levels(strategy: DDPStrategy, collectives: Collectives) -> tuple[Level, ...]:
    world_size, sizes = collectives.world_size, strategy.period_group_size
    if sizes is None:
        return (Level(strategy.model_averaging_period or 1, world_size),)
    if isinstance(sizes, str):
        return derived_levels(world_size, _subgroup_size(strategy, collectives))
    return fitting_levels(check_levels(sizes), world_size)


def _subgroup_size(strategy: DDPStrategy, collectives: Collectives) -> int:
    given = strategy.ddp_comm_state
    asked = given.get("subgroup_size") if isinstance(given, Mapping) else None
    per_node = Counter(collectives.gather_objects(collectives.node_rank)).values()
    # Groups of neighbouring ranks match nodes only if all nodes have equally many ranks.
    local = min(per_node) if len(set(per_node)) == 1 else 1
    return fitting_subgroup(asked, collectives.world_size, local)
