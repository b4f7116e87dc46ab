"""The axes `shard` and `replicate`: fsdp along one dimension of a mesh, and along two (hybrid sharding)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets, gradients_of_any
from stratagem_sharding.wrap_policy import Policy, modules_named, recompute_activations
from torch import nn
from torch.distributed.tensor import DTensor

from stratagem.sdk.axes import Axis, AxisSize, AxisSteps, AxisTarget
from stratagem_fsdp.parts import reduce_part, refuse_partly_used, shard_parts, units_of, unsharded
from stratagem_fsdp.torch_private import joined_mesh, local_of
from stratagem_fsdp.units import shard_units

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from stratagem import Prepared

LACKS = frozenset({"sparse_gradients", "whole_optimizer"})
"""Features that sharded parameters don't support."""


class ShardAxis(Axis):
    """Parameters, gradients and optimizer states in shards along this axis, on torch's `fully_shard`.

    Args:
        size: number of ranks among which they are sharded; "auto" uses the ranks that the other axes leave.
        auto_wrap_policy: which modules are gathered separately; as for fsdp.
        activation_checkpointing_policy: modules whose activations are computed again in backward; as for fsdp.
        gather_per_micro_batch: for an axis that runs micro-batches, as `pipeline` does: gather each of its layers for
            the forward and the backward of each micro-batch, and not once per batch. A rank then has the whole
            parameters of one layer at a time, and receives each of them 2 × micro-batches times. Batches of a new
            shape, evaluations and units within layers are gathered once. Without such an axis, units are gathered for
            each forward and backward in any case.
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
        gather_per_micro_batch: bool = False,
    ) -> None:
        super().__init__(size)
        self.auto_wrap_policy = auto_wrap_policy
        self.activation_checkpointing_policy = activation_checkpointing_policy
        self.gather_per_micro_batch = gather_per_micro_batch

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Shard the module's units, also over the ranks of axes that leave sharding to this one."""
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
            # What is within a layer may be called by some ranks alone, which would get each other's shards.
            called: set[Any] = set(target.roots) if self.gather_per_micro_batch else set()
            per_call = [unit for root in roots for unit in units_of(root) if unit in called]
            return PartSteps(roots, groups, request.device, split, per_call)
        shard_units(request, meshes.of, target.fill_unit, self.auto_wrap_policy, list(target.split))
        whole = [each for each in request.module.parameters() if not isinstance(each, DTensor)]
        return ShardSteps(whole, groups, request.device)


class ReplicateAxis(Axis):
    """Replicas of the shards along this axis; their gradients are averaged. The axis `shard` does the work.

    Args:
        size: number of copies; "auto" uses the ranks that the other axes leave.
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
        """Return the axis `shard`, whose units average gradients over both axes."""
        return (ShardAxis(1),)

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Do nothing: the axis `shard` transforms the module."""
        return AxisSteps()


class _Meshes:
    """Finds the mesh dimensions over which a unit is sharded, and over which its replicas are averaged.

    Args:
        target: has the module, the mesh and the other axes.
        shard: name of the axis that shards.
    """

    def __init__(self, target: AxisTarget, shard: str) -> None:
        self._target, self._shard = target, shard
        self._found: dict[tuple[str, ...], DeviceMesh | None] = {}

    def of(self, unit: nn.Module) -> DeviceMesh | None:
        """Return the mesh of a unit, as `fully_shard` takes it; None if its parameters aren't sharded."""
        copies, shards = self._target.names("copies"), self._target.names("shards")
        split = self._target.split.get(unit)
        if split is not None:
            shards = [name for name in shards if name != split]
        # fully_shard needs a shard dimension to replicate.
        shards = shards or ([self._shard] if copies else [])
        names = (*copies, *shards)
        if names not in self._found:
            dims = [each for each in (copies, shards) if each]
            self._found[names] = joined_mesh(self._target.mesh, dims) if dims else None
        return self._found[names]


class ShardSteps(AxisSteps):
    """Averages gradients of unsharded parameters, such as scalars.

    Args:
        whole: the unsharded parameters.
        groups: process groups of the dimensions over which other parameters are sharded or replicated.
        device: of the tensors that collectives send.
    """

    def __init__(self, whole: Sequence[nn.Parameter], groups: Sequence[Any], device: torch.device) -> None:
        self._whole, self._groups, self._device = whole, groups, device

    def after_backward(self) -> None:
        """Average gradients. Equal values don't change, so gradients may accumulate over several calls."""
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
    """Gathers the units in this rank's part of a module. Another axis has divided the module.

    Args:
        roots: outermost units.
        groups: as for `ShardSteps`.
        device: of the tensors that collectives send.
        split: modules that another axis splits, so that each rank has different parameters.
        per_call: units that torch gathers in each forward and backward, in batches in which all ranks call them
            equally often. In other batches they are gathered once, as all other units are.
    """

    def __init__(
        self,
        roots: Sequence[FSDPModule],
        groups: Sequence[Any],
        device: torch.device,
        split: Sequence[nn.Module],
        per_call: Sequence[FSDPModule] = (),
    ) -> None:
        super().__init__((), groups, device)
        self._roots, self._split, self._per_call = roots, split, tuple(per_call)
        self._names: dict[int, str] = {}
        self.asks_whether_calls_are_alike = bool(per_call)
        self._reshards = False
        """Whether torch frees units after each forward and each backward."""

    def begin(self, prepared: Prepared) -> None:
        """Find the parameters outside of units. Done here, since other axes fill split modules after `apply`."""
        module = prepared.original_module
        self._whole = unsharded(module, self._roots, self._split)
        apart = {id(each) for other in self._split for each in other.parameters(recurse=False)}
        self._names = {id(each): name for name, each in module.named_parameters() if id(each) not in apart}

    @contextmanager
    def gathered(self, reduces: bool, calls_alike: bool) -> Iterator[None]:
        """Gather all units before a batch, unless torch does during it. Reshard them after it."""
        units = [unit for root in self._roots for unit in units_of(root)]
        self._set_reshards(calls_alike)
        for unit in units:
            if not (calls_alike and unit in self._per_call):
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

    def _set_reshards(self, reshards: bool) -> None:
        if reshards == self._reshards:
            return  # torch's setters visit all modules
        self._reshards = reshards
        for unit in self._per_call:
            unit.set_reshard_after_forward(reshards, recurse=False)
            unit.set_reshard_after_backward(reshards, recurse=False)

    def release(self) -> None:
        super().release()
        self._roots = self._per_call = ()
