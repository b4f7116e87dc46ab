"""Shards the parameters of a user's module."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from stratagem_sharding.deferred_init import Materializer
from stratagem_sharding.kept_shards import KeptShards, Refill
from stratagem_sharding.module_snapshot import ModuleSnapshot
from stratagem_sharding.torch_private import own_buffers
from stratagem_sharding.unit_dtypes import refuse_mixed_dtypes
from stratagem_sharding.wrap_policy import (
    callable_children,
    modules_named,
    recompute_activations,
    units_among,
)
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from stratagem import ConfigError
from stratagem_fsdp import options
from stratagem_fsdp.units import outermost_of

if TYPE_CHECKING:
    from stratagem_sharding.deferred_init import Construction

    from stratagem import SetupRequest
    from stratagem_fsdp.strategy import FSDPStrategy


APART = (
    "put those of one dtype into their own module that auto_wrap_policy names, as auto_wrap_policy=['Block'], "
    "or choose ddp"
)
"""Advice for several dtypes in one unit, for messages."""


@dataclass(frozen=True)
class Sharded:
    """The units and parameters of a sharded module."""

    units: tuple[FSDPModule, ...]
    """Modules that are gathered separately, inner ones first."""
    roots: tuple[FSDPModule, ...]
    """The outermost units: those that aren't in another unit."""
    whole: tuple[nn.Parameter, ...]
    """Unsharded parameters, whose gradients `fully_shard` doesn't average."""
    snapshot: ModuleSnapshot
    """Snapshot of the modules before sharding."""


def shard(request: SetupRequest, strategy: FSDPStrategy, construction: Construction | None) -> Sharded:
    """Materialize and shard `request.module` in place, unit by unit. Collective.

    A rank holds one full unit at a time, in addition to its shards, unless the module was already materialized.
    """
    root, world_size = request.module, request.collectives.world_size
    if root is not request.original_module:
        # Nothing changes the outermost module's output in place, so it may be a view (see `_own_memory`).
        warnings.filterwarnings("ignore", rf"FSDP2-wrapped module \(FSDP{type(root).__name__}\)")
    snapshot = ModuleSnapshot(root)
    by_hand = request.loop.manual and request.loop.training
    candidates = modules_named(request.original_module, strategy.auto_wrap_policy)
    if by_hand:
        candidates += callable_children(request.original_module)
    ignored = options.ignored(request.original_module, strategy.ignored_modules)
    modules = units_among(request.original_module, [each for each in candidates if each not in ignored])
    left_whole = {parameter for module in ignored for parameter in module.parameters()}
    if strategy.activation_checkpointing_policy is not None:
        what = "activation_checkpointing_policy"
        recompute_activations(
            modules_named(request.original_module, strategy.activation_checkpointing_policy, what)
        )
    mesh = options.make_mesh(
        strategy.sharding_strategy,
        strategy.device_mesh,
        request.device,
        request.collectives,
        strategy.open_mesh,
    )
    refill: Refill | None = None
    materializer: Materializer | Refill
    if isinstance(request.left_shards, KeptShards):
        request.left_shards.check_mesh(mesh)
        materializer = refill = Refill(request.original_module, request.left_shards, world_size)
    else:
        materializer = Materializer(
            root, construction, strategy.param_init_fn, strategy.sync_module_states, request.collectives
        )
    has_meta = any(tensor.is_meta for tensor in (*root.parameters(), *root.buffers()))
    if not has_meta:
        request.precision.convert_module(root)
    outermost = outermost_of(modules) if by_hand else {root}
    done: set[nn.Module] = set()
    for module in [*modules, root]:
        materializer.fill(module, done)
        if has_meta:
            request.precision.convert_module(module)
        if module is not root or not by_hand:
            refuse_mixed_dtypes(module, done, request.original_module, APART)
            is_outermost = module in outermost
            # Backward needs the outermost unit's parameters first, so keep them gathered after forward. Not in
            # manual optimization, which calls submodules one by one and may read parameters between calls.
            keep = not by_hand and (is_outermost or strategy.sharding_strategy in options.KEEPS_AFTER_FORWARD)
            asked = strategy.reshard_after_forward
            if isinstance(module, FSDPModule):
                raise ConfigError(
                    f"a {type(module).__name__} of {type(request.original_module).__name__} is part of a module that "
                    "was set up before: set up one module that has both, and name the methods that your loop calls "
                    "by forward_methods=[...]"
                )
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=not keep if asked is None else asked,
                mp_policy=options.mixed_precision(strategy.mixed_precision, request.precision, is_outermost),
                offload_policy=options.offload_policy(strategy.cpu_offload, request.device),
                ignored_params={
                    each
                    for each in module.parameters()
                    if each.dim() == 0 or each.numel() == 0 or each in left_whole
                },
            )
        done.add(module)
    units = tuple(module for module in (*modules, root) if isinstance(module, FSDPModule))
    if strategy.forward_prefetch and request.device.type != "cpu":
        _prefetch_forward(root)
    if refill is not None:
        refill.finish()
    whole = move_the_rest(request)
    snapshot.note()
    return Sharded(units, tuple(unit for unit in units if unit in outermost), whole, snapshot)


def _prefetch_forward(root: nn.Module) -> None:
    units = [module for module in root.modules() if isinstance(module, FSDPModule)]
    for unit, following in pairwise(units):
        unit.set_modules_to_forward_prefetch([following])


def move_the_rest(request: SetupRequest) -> tuple[nn.Parameter, ...]:
    """Move unsharded tensors to the device; return the parameters among them."""
    from torch.distributed.tensor import DTensor

    whole = [parameter for parameter in request.module.parameters() if not isinstance(parameter, DTensor)]
    for parameter in whole:
        parameter.data = parameter.data.to(request.device)
    for module in request.module.modules():
        for name, buffer in own_buffers(module).items():
            if buffer is not None:
                own_buffers(module)[name] = buffer.to(request.device)
    return tuple(whole)
