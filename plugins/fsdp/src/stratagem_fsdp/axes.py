"""The axes `shard` and `replicate`: what fsdp does with one dimension of a mesh, and with two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets, gradients_of_any
from stratagem_sharding.wrap_policy import Policy, modules_named, recompute_activations
from torch.distributed.tensor import DTensor

from stratagem.sdk.axes import Axis, AxisSize, AxisSteps, AxisTarget
from stratagem_fsdp.parts import reduce_part, refuse_partly_used, shard_parts, units_of, unsharded
from stratagem_fsdp.torch_private import joined_mesh, local_of
from stratagem_fsdp.units import shard_units

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from stratagem import Prepared

LACKS = frozenset({"sparse_gradients", "whole_optimizer"})
"""What shards don't stand."""


class ShardAxis(Axis):
    """Parameters, gradients and optimizer states in shards along this axis, on torch's `fully_shard`.

    Args:
        size: number of ranks among which they are sharded; "auto" is what the other axes leave.
        auto_wrap_policy: which modules are gathered separately; as for fsdp.
        activation_checkpointing_policy: modules whose activations are computed again in backward; as for fsdp.
    """

    name = "shard"
    mesh_order = 300
    setup_order = 300
    reads_same_batches = False
    takes_parts = True
    lacks = LACKS
    unsplit_parameters = "shards"
    sends = "each block's parameters before it computes (all-gather), its gradients after backward (reduce-scatter)"

    def __init__(
        self,
        size: AxisSize = "auto",
        *,
        auto_wrap_policy: Policy = None,
        activation_checkpointing_policy: Policy = None,
    ) -> None:
        super().__init__(size)
        self.auto_wrap_policy = auto_wrap_policy
        self.activation_checkpointing_policy = activation_checkpointing_policy

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Shard the module's units, over the ranks of axes that leave parameters to this one, too."""
        request = target.request
        if self.activation_checkpointing_policy is not None:
            what = "activation_checkpointing_policy"
            modules = modules_named(request.original_module, self.activation_checkpointing_policy, what)
            recompute_activations(modules)
        meshes = _Meshes(target, self.name)
        averaging = [*target.names("copies"), *target.names("shards")]
        groups = [target.mesh.get_group(name) for name in averaging]
        if target.roots is not None:
            split = list(target.split)
            roots = shard_parts(
                request, meshes.of, target.fill_unit, self.auto_wrap_policy, target.roots, split
            )
            return PartSteps(roots, groups, request.device, split)
        shard_units(request, meshes.of, target.fill_unit, self.auto_wrap_policy, list(target.split))
        whole = [each for each in request.module.parameters() if not isinstance(each, DTensor)]
        return ShardSteps(whole, groups, request.device)


class ReplicateAxis(Axis):
    """Copies of the shards along this axis, whose gradients are averaged. `shard` does it, on one rank if need be.

    Args:
        size: number of copies; "auto" is what the other axes leave.
    """

    name = "replicate"
    mesh_order = 200
    setup_order = 200
    reads_same_batches = False
    takes_parts = True
    lacks = LACKS
    unsplit_parameters = "copies"
    sends = "the gradients of each rank's shards (all-reduce), after they were reduced along shard"

    def companions(self) -> Sequence[Axis]:
        """The axis `shard`, whose units average over both."""
        return (ShardAxis(1),)

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Leave the module to `shard`."""
        return AxisSteps()


class _Meshes:
    """The dimensions over which units are sharded, and over which copies of their shards are averaged.

    Args:
        target: what is sharded.
        shard: name of the axis that shards.
    """

    def __init__(self, target: AxisTarget, shard: str) -> None:
        self._target, self._shard = target, shard
        self._found: dict[tuple[str, ...], DeviceMesh | None] = {}

    def of(self, unit: nn.Module) -> DeviceMesh | None:
        """Return the mesh of a unit, as `fully_shard` takes it; None where its parameters stay as they are."""
        copies, shards = self._target.names("copies"), self._target.names("shards")
        split = self._target.split.get(unit)
        if split is not None:
            shards = [name for name in shards if name != split]
        # fully_shard has no copies without a dimension of shards.
        shards = shards or ([self._shard] if copies else [])
        names = (*copies, *shards)
        if names not in self._found:
            dims = [each for each in (copies, shards) if each]
            self._found[names] = joined_mesh(self._target.mesh, dims) if dims else None
        return self._found[names]


class ShardSteps(AxisSteps):
    """Averages gradients of parameters that every rank has whole, as those without a dimension.

    Args:
        whole: these parameters.
        groups: the ranks of each dimension over which the others are sharded or copied.
        device: of messages.
    """

    def __init__(self, whole: Sequence[nn.Parameter], groups: Sequence[Any], device: torch.device) -> None:
        self._whole, self._groups, self._device = whole, groups, device

    def after_backward(self) -> None:
        """Average. What is equal on all ranks stays as it is, so that gradients may accumulate over several calls."""
        trained = [each for each in self._whole if each.requires_grad and each.numel()]
        for group in self._groups:
            has_one = [parameter.grad is not None for parameter in trained]
            gradients = gradients_of_any(trained, has_one, self._device, group)
            for flat in flattened_buckets(local_of(each) for each in gradients):
                dist.all_reduce(flat, group=group)
                flat.div_(dist.get_world_size(group))

    def release(self) -> None:
        self._whole = self._groups = ()


class PartSteps(ShardSteps):
    """Gathers units of the part of a module that another axis has given this rank, once per batch.

    Args:
        roots: outermost units.
        groups: as for `ShardSteps`.
        device: of messages.
        split: modules of which each rank has parameters of its own.
    """

    def __init__(
        self,
        roots: Sequence[FSDPModule],
        groups: Sequence[Any],
        device: torch.device,
        split: Sequence[nn.Module],
    ) -> None:
        super().__init__((), groups, device)
        self._roots, self._split = roots, split
        self._names: dict[int, str] = {}

    def begin(self, prepared: Prepared) -> None:
        """Look for what isn't in a unit: what other axes split of it is filled after `apply`."""
        module = prepared.original_module
        self._whole = unsharded(module, self._roots, self._split)
        apart = {id(each) for other in self._split for each in other.parameters(recurse=False)}
        self._names = {id(each): name for name, each in module.named_parameters() if id(each) not in apart}

    @contextmanager
    def gathered(self, reduces: bool) -> Iterator[None]:
        """Gather all units before, and free them after: between, ranks may call them unequally often."""
        units = [unit for root in self._roots for unit in units_of(root)]
        for unit in units:
            unit.unshard()
        try:
            yield
        except BaseException:
            for unit in units:
                unit.reshard()
            raise
        if reduces:
            refuse_partly_used(self._roots, self._names, self._groups, self._device)
            for root in self._roots:
                reduce_part(root)
        for unit in units:
            unit.reshard()

    def release(self) -> None:
        super().release()
        self._roots = ()
