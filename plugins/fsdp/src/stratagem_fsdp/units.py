"""Units of a module sharded one by one, over one or two dimensions of a mesh that may have others."""

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

    A rank holds one unit whole at a time, beside its shards, unless the module came whole.

    Args:
        request: as the `setup` hook received it.
        mesh_of: returns the mesh of a unit: (shards,), or (replicas, shards); None where it isn't sharded.
        fill_unit: gives a module its values, outside of modules in it that were filled.
        auto_wrap_policy: which modules are units; as for fsdp.
        apart: modules that are units whatever the policy, since their mesh is another one.

    Raises:
        ConfigError: a parameter was split so that some ranks have nothing of it.
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
        unit: has its values.
        mesh: over which it is sharded.
        inner: units that are sharded already.
        kept: parameters in it that no unit has.
        reshards_after_forward: whether it is gathered again for its backward.

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
    """Refuse what `fully_shard` can't reduce in backward, on all ranks alike.

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
    """Return the parameters of modules that no unit around them may have, since they aren't sharded."""
    return [each for module in apart if mesh_of(module) is None for each in module.parameters(recurse=False)]


def sharded_units(root: nn.Module) -> tuple[tuple[FSDPModule, ...], tuple[FSDPModule, ...]]:
    """Return the units of a module that was sharded, inner ones first, and those that aren't in another one."""
    units = tuple(module for module in _inner_first(root, set()) if isinstance(module, FSDPModule))
    outermost = outermost_of(units)
    return units, tuple(unit for unit in units if unit in outermost)


def outermost_of(units: Iterable[nn.Module]) -> set[nn.Module]:
    """Return those that aren't within another one."""
    units = set(units)
    return units - {inner for unit in units for inner in list(unit.modules())[1:]}


def _inner_first(module: nn.Module, seen: set[nn.Module]) -> list[nn.Module]:
    if module in seen:
        return []
    seen.add(module)
    return [*(each for child in module.children() for each in _inner_first(child, seen)), module]


def _own_memory(module: nn.Module, args: Any, output: Any) -> Any:
    """Return outputs that aren't views: fully_shard notices no backward through a view that is changed in place."""
    if not isinstance(output, (torch.Tensor, tuple, list)):
        return output
    return map_tensors(lambda tensor: tensor.clone() if is_view(tensor) else tensor, output)
