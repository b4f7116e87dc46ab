"""Splits a user's module along the mesh's tensor dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratagem_sharding.torch_private import is_compiled
from stratagem_trainer import Module
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from stratagem import ConfigError
from stratagem_model_parallel import heads, plan
from stratagem_model_parallel.blocks import BlockPlan, known_blocks, split_blocks
from stratagem_model_parallel.built_in import BUILT_IN
from stratagem_model_parallel.mesh import TENSOR
from stratagem_model_parallel.replaced import refuse_replaced
from stratagem_model_parallel.second_gradients import refuse_second_gradients


@dataclass(frozen=True)
class SplitSettings:
    """How layers are split; see docs/strategies/model-parallel.md."""

    parallelize: plan.Plan = None
    """The plan; None uses the module's own method `parallelize`, or else the built-in plans."""
    plans: Sequence[BlockPlan] = ()
    """Plans that take precedence over the built-in ones."""
    sequence_parallel: bool = False
    """Built-in plans let ranks compute shards of the sequence between attention and feed-forward."""
    loss_parallel: bool = False
    """Compute cross entropies from shards of the vocabulary."""

    def __post_init__(self) -> None:
        if self.sequence_parallel and self.parallelize is not None:
            raise ConfigError(
                "sequence_parallel belongs to the built-in plans, and parallelize was given: say it in the plan, "
                'with the styles "sequence", "whole_input_sequence" and "rowwise_sequence", or torch\'s'
            )


def split_layers(original_module: nn.Module, settings: SplitSettings, mesh: DeviceMesh) -> None:
    """Split the layers of a module in place. Tensors may get their values later.

    Args:
        original_module: the user's module.
        settings: how to split it.
        mesh: with a dimension "tensor".

    Raises:
        ConfigError: the module can't be split by these settings.
    """
    if mesh[TENSOR].size() > 1:
        refuse_compiled(original_module)
        _carry_out(settings, original_module, mesh)
        if any(isinstance(module, FSDPModule) for module in original_module.modules()):
            raise ConfigError(
                "the plan called fully_shard: leave that out, the strategy shards over the data dimension itself"
            )
    elif isinstance(settings.parallelize, Mapping):
        for name in settings.parallelize:
            plan.modules_like(name, original_module)  # refuses a name without a module
    refuse_second_gradients(original_module)
    refuse_replaced(original_module)


def refuse_uneven_blocks(original_module: nn.Module, settings: SplitSettings, size: int) -> None:
    """Refuse blocks that the built-in plans can't split equally among `size` ranks. Changes nothing.

    Raises:
        ConfigError: names the first such block, and the attribute.
    """
    is_own = (
        isinstance(original_module, Module) and type(original_module).parallelize is not Module.parallelize
    )
    if settings.parallelize is None and not is_own:
        for block, (name, plan_of_block) in known_blocks(
            original_module, (*settings.plans, *BUILT_IN)
        ).items():
            plan_of_block.refuse_uneven(block, name, size)


def refuse_compiled(original_module: nn.Module) -> None:
    """Refuse modules that `torch.compile` has been applied to.

    Raises:
        ConfigError: names the first.
    """
    for name, module in original_module.named_modules():
        if is_compiled(module):
            raise ConfigError(
                f"{name or type(original_module).__name__!r} is compiled, and torch trains compiled "
                "blocks wrongly, without an error, once their layers are split and sharded: leave torch.compile "
                "out, or choose the strategy fsdp or ddp"
            )


def _carry_out(settings: SplitSettings, original_module: nn.Module, mesh: DeviceMesh) -> None:
    """Split layers by the first available plan: the user's, the module's own, or the built-in ones."""
    if settings.parallelize is not None:
        plan.carry_out(settings.parallelize, original_module, mesh)
        return
    own = original_module.parallelize(mesh) if isinstance(original_module, Module) else NotImplemented
    if own is not NotImplemented:
        plan.carry_out(
            plan.returned(own, original_module, f"{type(original_module).__name__}.parallelize"),
            original_module,
            mesh,
        )
        return
    found = split_blocks(original_module, (*settings.plans, *BUILT_IN), mesh, settings.sequence_parallel)
    if settings.loss_parallel:
        heads.split_heads(original_module, mesh)
    elif not found:
        raise ConfigError(
            f"the built-in plans know no block of {type(original_module).__name__}, so that nothing "
            "would be split: give "
            "parallelize={name: style, ...}, or a method parallelize(self, mesh) that returns such a dict"
        )
