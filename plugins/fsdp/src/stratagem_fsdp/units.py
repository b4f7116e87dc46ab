"""Shards the units of a module one by one, over one or two dimensions of a mesh that may have more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.unit_dtypes import refuse_mixed_dtypes
from stratagem_sharding.wrap_policy import Policy, callable_children, modules_named, units_among
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from stratagem import ConfigError
from stratagem.sdk.tensors import map_tensors
from stratagem_fsdp.options import mixed_precision
from stratagem_fsdp.torch_private import is_view

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem import SetupRequest


def shard_units(
    request: SetupRequest,
    mesh_of: Callable[[nn.Module], DeviceMesh | None],
    fill_unit: Callable[[nn.Module], None],
    auto_wrap_policy: Policy = None,
    apart: Collection[nn.Module] = (),
) -> None:
    """Fill and shard `request.module` in place, unit by unit. Collective.

    A rank holds one full unit at a time, in addition to its shards, unless the module was already materialized.

    Args:
        request: as the `setup` hook received it.
        mesh_of: returns the mesh of a unit: (shards,), or (replicas, shards); None if it isn't sharded.
        fill_unit: fills a module with its values, except submodules that are already filled.
        auto_wrap_policy: which modules are units; as for fsdp.
        apart: modules that are always units, since they have another mesh.

    Raises:
        ConfigError: another axis has split a parameter so that some ranks have no elements of it.
    """
    root, original_module = request.module, request.original_module
    if mesh_of(root) is not None:
        refuse_empty_parts(original_module.named_parameters())
    by_hand = request.loop.manual and request.loop.training
    candidates = [*modules_named(original_module, auto_wrap_policy), *apart]
    if by_hand:
        candidates += callable_children(original_module)
    units = units_among(original_module, candidates)
    outermost = outermost_of(units) if by_hand else {root}
    done: set[nn.Module] = set()
    for module in [*units, root]:
        fill_unit(module)
        mesh = mesh_of(module)
        if mesh is not None and (module is not root or not by_hand):
            reshards = by_hand or module not in outermost
            shard_unit(
                request, module, mesh, done, left_alone(apart, mesh_of), reshards_after_forward=reshards
            )
        done.add(module)


def shard_unit(
    request: SetupRequest,
    unit: nn.Module,
    mesh: DeviceMesh,
    inner: Collection[nn.Module],
    kept: Iterable[nn.Parameter],
    *,
    reshards_after_forward: bool,
) -> None:
    """Shard one unit in place. Collective.

    Args:
        request: as the `setup` hook received it.
        unit: the module; it must have its values.
        mesh: the mesh over which it is sharded.
        inner: units that are sharded already.
        kept: parameters in it that belong to no unit.
        reshards_after_forward: whether to free its parameters after forward, and gather them again for backward.

    Raises:
        ConfigError: its trained parameters have several dtypes.
    """
    advice = "keep those of one dtype in their own module that auto_wrap_policy names"
    refuse_mixed_dtypes(unit, inner, request.original_module, advice)
    unit.register_forward_hook(_own_memory)
    fully_shard(
        unit,
        mesh=mesh,
        reshard_after_forward=reshards_after_forward,
        mp_policy=mixed_precision(None, request.precision),
        ignored_params={*(each for each in unit.parameters() if each.dim() == 0 or not each.numel()), *kept},
    )


def refuse_empty_parts(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse split parameters of which some ranks have no elements: `fully_shard` can't reduce their gradients.

    Args:
        named: parameters with their names in the user's module.
    """
    for name, parameter in named:
        if not isinstance(parameter, DTensor):
            continue
        for placement, parts in zip(parameter.placements, parameter.device_mesh.shape):
            if isinstance(placement, Shard) and 0 < parameter.shape[placement.dim] < parts:
                raise ConfigError(
                    f"parameter {name!r} of shape {tuple(parameter.shape)} is split among {parts} ranks, and some "
                    "have nothing of it, and can't be sharded as well: leave its layer out of the plan"
                )


def left_alone(
    apart: Iterable[nn.Module], mesh_of: Callable[[nn.Module], DeviceMesh | None]
) -> list[nn.Parameter]:
    """Return the parameters of unsharded modules, which must not belong to a unit around them."""
    return [each for module in apart if mesh_of(module) is None for each in module.parameters(recurse=False)]


def sharded_units(root: nn.Module) -> tuple[tuple[FSDPModule, ...], tuple[FSDPModule, ...]]:
    """Return the units of a sharded module, inner ones first; and the outermost units."""
    units = tuple(module for module in _inner_first(root, set()) if isinstance(module, FSDPModule))
    outermost = outermost_of(units)
    return units, tuple(unit for unit in units if unit in outermost)


def outermost_of(units: Iterable[nn.Module]) -> set[nn.Module]:
    """Return the units that aren't inside of another one."""
    units = set(units)
    return units - {inner for unit in units for inner in list(unit.modules())[1:]}


def _inner_first(module: nn.Module, seen: set[nn.Module]) -> list[nn.Module]:
    if module in seen:
        return []
    seen.add(module)
    return [*(each for child in module.children() for each in _inner_first(child, seen)), module]


def _own_memory(module: nn.Module, args: Any, output: Any) -> Any:
    """Clone outputs that are views: an in-place change of a view drops fully_shard's pre-backward hook.

    See pytorch/pytorch#181832.
    """
    if not isinstance(output, (torch.Tensor, tuple, list)):
        return output
    return map_tensors(lambda tensor: tensor.clone() if is_view(tensor) else tensor, output)
