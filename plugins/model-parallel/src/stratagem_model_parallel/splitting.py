"""From a user's module to one that is split over the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from stratagem_fsdp import Sharded, inside, mixed_precision, move_the_rest
from stratagem_sharding.deferred_init import Construction, Materializer
from stratagem_sharding.kept_shards import KeptShards, Refill
from stratagem_sharding.module_snapshot import ModuleSnapshot
from stratagem_sharding.unit_dtypes import refuse_mixed_dtypes
from stratagem_sharding.wrap_policy import (
    callable_children,
    modules_named,
    recompute_activations,
    units_among,
)
from stratagem_trainer import Module
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from stratagem import ConfigError
from stratagem.sdk.tensors import map_tensors
from stratagem_model_parallel import heads, plan
from stratagem_model_parallel.blocks import split_blocks
from stratagem_model_parallel.built_in import BUILT_IN
from stratagem_model_parallel.filling import Filler
from stratagem_model_parallel.mesh import DATA, TENSOR
from stratagem_model_parallel.second_gradients import refuse_second_gradients
from stratagem_model_parallel.torch_private import is_compiled, is_view

if TYPE_CHECKING:
    from stratagem import SetupRequest
    from stratagem_model_parallel.strategy import ModelParallelStrategy


def split(
    request: SetupRequest,
    strategy: ModelParallelStrategy,
    mesh: DeviceMesh,
    construction: Construction | None,
) -> Sharded:
    """Split `request.module` in place: layers over the tensor dimension, what is left over the data dimension.

    Collective. A rank holds one unit whole at a time, beside its parts, unless the module came whole.
    """
    root, original_module = request.module, request.original_module
    snapshot = ModuleSnapshot(root)
    refill: Refill | None = None
    if isinstance(request.left_shards, KeptShards):
        refill = Refill(original_module, request.left_shards, request.collectives.world_size)
    source = refill or Materializer(
        root, construction, None, strategy.sync_module_states, request.collectives
    )
    filler = Filler(root, source, request.precision)
    if mesh[TENSOR].size() > 1:
        refuse_compiled(original_module)
        _carry_out(strategy, original_module, mesh)
        if any(isinstance(module, FSDPModule) for module in root.modules()):
            raise ConfigError(
                "the plan called fully_shard: leave that out, the strategy shards over the data dimension itself"
            )
        filler.tie_again()
    elif isinstance(strategy.parallelize, Mapping):
        for name in strategy.parallelize:
            plan.modules_like(name, original_module)  # refuses what names no module
    by_hand = request.loop.manual and request.loop.training
    candidates = modules_named(original_module, strategy.auto_wrap_policy)
    if by_hand:
        candidates += callable_children(original_module)
    units = units_among(original_module, candidates)
    if strategy.activation_checkpointing_policy is not None:
        what = "activation_checkpointing_policy"
        recompute_activations(modules_named(original_module, strategy.activation_checkpointing_policy, what))
    shards = mesh[DATA].size() > 1
    outermost = set(units) - {each for unit in units for each in inside(unit)} if by_hand else {root}
    done: set[nn.Module] = set()
    for module in [*units, root]:
        filler.fill(module, done)
        if shards and (module is not root or not by_hand):
            apart = "keep those of one dtype in their own module that auto_wrap_policy names"
            refuse_mixed_dtypes(module, done, original_module, apart)
            module.register_forward_hook(_own_memory)
            fully_shard(
                module,
                mesh=mesh[DATA],
                reshard_after_forward=by_hand or module not in outermost,
                mp_policy=mixed_precision(None, request.precision),
                ignored_params={each for each in module.parameters() if each.dim() == 0 or not each.numel()},
            )
        done.add(module)
    made = tuple(module for module in (*units, root) if isinstance(module, FSDPModule))
    if refill is not None:
        refill.finish()
    whole = move_the_rest(request)
    refuse_second_gradients(original_module)
    snapshot.note()
    return Sharded(made, tuple(unit for unit in made if unit in outermost), whole if shards else (), snapshot)


def _own_memory(module: nn.Module, args: Any, output: Any) -> Any:
    """Return outputs that aren't views: fully_shard notices no backward through a view that is changed in place."""
    if not isinstance(output, (torch.Tensor, tuple, list)):
        return output
    return map_tensors(lambda tensor: tensor.clone() if is_view(tensor) else tensor, output)


def refuse_compiled(original_module: nn.Module) -> None:
    """Refuse modules that `torch.compile` has been applied to.

    Raises:
        ConfigError: names the first.
    """
    for name, module in original_module.named_modules():
        if type(module).__name__ == "OptimizedModule" or is_compiled(module):
            raise ConfigError(
                f"{name or type(original_module).__name__!r} is compiled, and torch trains compiled "
                "blocks wrongly, without a word, once their layers are split and sharded: take torch.compile away, "
                "or choose the strategy fsdp or ddp"
            )


def _carry_out(strategy: ModelParallelStrategy, original_module: nn.Module, mesh: DeviceMesh) -> None:
    """Split layers by the plan that there is: the strategy's, the module's own, or the built-in ones."""
    if strategy.parallelize is not None:
        plan.carry_out(strategy.parallelize, original_module, mesh)
        return
    own = original_module.parallelize(mesh) if isinstance(original_module, Module) else NotImplemented
    if own is not NotImplemented:
        plan.carry_out(
            plan.returned(own, original_module, f"{type(original_module).__name__}.parallelize"),
            original_module,
            mesh,
        )
        return
    found = split_blocks(original_module, (*strategy.plans, *BUILT_IN), mesh, strategy.sequence_parallel)
    if strategy.loss_parallel:
        heads.split_heads(original_module, mesh)
    elif not found:
        raise ConfigError(
            f"the built-in plans know no block of {type(original_module).__name__}, so that nothing "
            "would be split: give "
            "parallelize={name: style, ...}, or a method parallelize(self, mesh) that returns such a dict"
        )
