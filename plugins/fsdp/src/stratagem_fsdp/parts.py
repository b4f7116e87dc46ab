"""Shards the units in a rank's part of a module, which another axis has divided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from stratagem_sharding.wrap_policy import Policy, callable_children, modules_named, units_among
from torch import nn
from torch.distributed.fsdp import FSDPModule

from stratagem.errors import GradientError
from stratagem_fsdp.none_losses import reduce_kept_gradients
from stratagem_fsdp.torch_private import has_gradient, has_run, managed_parameters, reduced_groups
from stratagem_fsdp.units import left_alone, outermost_of, refuse_empty_parts, shard_unit, sharded_units

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem import SetupRequest


def shard_parts(
    request: SetupRequest,
    mesh_of: Callable[[nn.Module], DeviceMesh | None],
    fill_unit: Callable[[nn.Module], None],
    auto_wrap_policy: Policy,
    roots: Sequence[nn.Module],
    apart: Collection[nn.Module] = (),
) -> tuple[FSDPModule, ...]:
    """Shard each module that this rank calls, and the units in it. Collective.

    Units are gathered once per batch, for all of its micro-batches, and stay gathered until its end. `reduce_part`
    then reduces the gradients of all micro-batches. Two kinds stay unsharded: a module that shares a parameter with
    a module outside of it, and parameters outside of `roots`.

    Args:
        request: as the `setup` hook received it.
        mesh_of: as for `shard_units`.
        fill_unit: as for `shard_units`.
        auto_wrap_policy: as for `shard_units`.
        roots: modules that this rank calls; none is inside of another.
        apart: as for `shard_units`.

    Returns:
        The outermost units.

    Raises:
        ConfigError: as for `shard_units`.
    """
    original_module = request.original_module
    inside = {module for root in roots for module in root.modules()}
    policy = modules_named(original_module, auto_wrap_policy)
    candidates = [*roots, *(child for root in roots for child in callable_children(root)), *policy, *apart]
    units = units_among(original_module, [module for module in candidates if module in inside])
    # Modules that no policy names are units only if the module around them can't be one.
    around = {inner for root in roots if root in units for inner in list(root.modules())[1:]}
    units = [module for module in units if module not in around or module in policy or module in apart]
    if any(mesh_of(unit) is not None for unit in units):
        refuse_empty_parts((name, p) for name, p in original_module.named_parameters() if not p.is_meta)
    done: set[nn.Module] = set()
    for module in units:
        fill_unit(module)
        mesh = mesh_of(module)
        if mesh is None:
            continue
        shard_unit(request, module, mesh, done, left_alone(apart, mesh_of), reshards_after_forward=False)
        done.add(module)
    outermost = outermost_of(done)
    found = tuple(module for module in units if module in outermost and isinstance(module, FSDPModule))
    for root in found:
        root.set_reshard_after_backward(False)
        root.set_requires_gradient_sync(False)
    return found


def units_of(root: FSDPModule) -> tuple[FSDPModule, ...]:
    """Return an outermost unit and the units in it."""
    assert isinstance(root, nn.Module)
    return sharded_units(root)[0]


def unsharded(
    module: nn.Module, roots: Sequence[FSDPModule], split: Collection[nn.Module] = ()
) -> list[nn.Parameter]:
    """Return this rank's parameters outside of all units.

    Args:
        module: the user's module.
        roots: its outermost units.
        split: modules that another axis splits, so that each rank has different parameters.
    """
    managed = {
        id(parameter) for root in roots for unit in units_of(root) for parameter in managed_parameters(unit)
    }
    managed.update(id(each) for other in split for each in other.parameters(recurse=False))
    return [each for each in module.parameters() if id(each) not in managed and not each.is_meta]


def reduce_part(root: FSDPModule) -> None:
    """Reduce the gradients that all micro-batches have accumulated in an outermost unit. Collective."""
    if has_run(root):
        root.set_requires_gradient_sync(True)
        reduce_kept_gradients(root)
        root.set_requires_gradient_sync(False)


def refuse_partly_used(
    roots: Sequence[FSDPModule], names: Mapping[int, str], groups: Sequence[Any], device: torch.device
) -> None:
    """Refuse gradients that only some ranks have: each rank would reduce only those that it has. Collective.

    Args:
        roots: outermost units.
        names: id → name of each parameter to compare.
        groups: process groups that reduce gradients.
        device: of the tensors that collectives send.

    Raises:
        GradientError: names a parameter, on all ranks.
    """
    units = [unit for root in roots for unit in units_of(root)]
    held = [
        each
        for unit in units
        for group in reduced_groups(unit)
        for each in group.fsdp_params
        if id(each.sharded_param) in names
    ]
    if not held:
        return
    has_one = torch.tensor([has_gradient(each) for each in held], dtype=torch.uint8, device=device)
    seen = torch.stack([has_one, 1 - has_one])
    for group in groups:
        dist.all_reduce(seen, dist.ReduceOp.MAX, group=group)
    for each, differs in zip(held, seen.amin(0).tolist()):
        if differs:
            raise GradientError(
                f"{names[id(each.sharded_param)]!r} has a gradient on some ranks and none on others, and shards are "
                "reduced by all ranks together: use each parameter on all ranks in each step, as by adding "
                "0.0 * parameter.sum() to the loss, or choose pipeline with data_parallel_size"
            )
