"""`KeptShards`: this process's shards of a module of DTensors, from the end of one run to the start of the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stratagem.errors import CombinationError
from stratagem_sharding.deferred_init import own_modules
from stratagem_sharding.module_snapshot import ModuleSnapshot
from stratagem_sharding.torch_private import forget_sharding, own_table, own_tensors

__all__ = ["KeptShards", "Refill", "leave_shards", "remove_sharding"]


@dataclass(frozen=True)
class _Shard:
    """This rank's shard of one tensor."""

    local: torch.Tensor
    layout: tuple[Any, ...]
    """Shape of the mesh, placements and local shape; equal in the next run if it shards the tensor the same way."""


class KeptShards:
    """Keeps this rank's shards of the parameters and buffers that are DTensors now, and so keeps their memory.

    Args:
        module: the user's sharded module; none of its units is gathered.
    """

    def __init__(self, module: nn.Module) -> None:
        self._shards = {
            name: _Shard(tensor.to_local().detach(), _layout(tensor))
            for name, _, _, tensor in _named(module)
            if isinstance(tensor, DTensor)
        }

    def check_mesh(self, mesh: DeviceMesh) -> None:
        """Refuse a mesh whose shape differs from that of the shards, before anything is changed.

        Raises:
            CombinationError: the shapes differ.
        """
        shape = tuple(mesh.shape)
        for name, shard in self.items():
            if shard.layout[0] != shape:
                raise _differs(name, f"over a mesh of {shard.layout[0]}, and now of {shape}")

    def items(self) -> Iterator[tuple[str, _Shard]]:
        """Yield the name and the shard of each tensor."""
        return iter(self._shards.items())


class Refill:
    """Sets a module up again from the shards of the previous run. A new module has a `Materializer` instead.

    DTensors of the previous run become tensors on "meta" of the whole shape. `fill` allocates them a unit at a time,
    without values. Once they have been sharded again, `finish` copies the shards into them.

    Args:
        module: the user's module, as the previous run left it.
        kept: the shards of the module.
        world_size: number of ranks.
    """

    def __init__(self, module: nn.Module, kept: KeptShards, world_size: int) -> None:
        self._module, self._kept, self._world_size = module, kept, world_size
        made: dict[int, torch.Tensor] = {}
        for _, own, name, tensor in _named(module):
            if not isinstance(tensor, DTensor):
                continue
            if id(tensor) not in made:
                empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
                is_parameter = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
            own[name] = made[id(tensor)]

    def fill(self, unit: nn.Module, inner: set[nn.Module]) -> None:
        """Allocate the tensors of `unit` on "meta", and broadcast rank 0's values of its other tensors. Collective.
        Tensors of `inner` units are left out: they are done already.
        """
        made: dict[int, torch.Tensor] = {}
        whole: dict[int, torch.Tensor] = {}
        for module in own_modules(unit, inner):
            for name, tensor in own_tensors(module):
                if not tensor.is_meta:
                    whole[id(tensor)] = tensor.detach()
                    continue
                if id(tensor) not in made:
                    empty = torch.empty_like(tensor, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
                own_table(module, name)[name] = made[id(tensor)]
        if self._world_size > 1:
            for tensor in whole.values():
                dist.broadcast(tensor, 0)

    @torch.no_grad()
    def finish(self) -> None:
        """Copy the shards into the sharded module.

        Raises:
            CombinationError: it is sharded in another way than in the previous run.
        """
        now = {name: tensor for name, _, _, tensor in _named(self._module)}
        for name, shard in self._kept.items():
            tensor = now[name]
            if not isinstance(tensor, DTensor) or _layout(tensor) != shard.layout:
                now_layout = _layout(tensor)[1:] if isinstance(tensor, DTensor) else "whole"
                raise _differs(name, f"as {shard.layout[1:]}, and now as {now_layout}")
            tensor.to_local().copy_(shard.local)


def leave_shards(module: nn.Module, snapshot: ModuleSnapshot, world_size: int) -> KeptShards | None:
    """Remove `fully_shard` and the strategy's other changes from a module. Its parameters stay sharded. Not
    collective.

    Args:
        module: the user's module; none of its units is gathered.
        snapshot: of the module and of what it was wrapped in.
        world_size: number of ranks; a single rank has every parameter whole, and gets plain tensors.

    Returns:
        The value for `Prepared.left_shards`; None if the module is whole.
    """
    remove_sharding(snapshot)
    if world_size > 1:
        return KeptShards(module)
    made: dict[int, torch.Tensor] = {}
    for _, own, name, tensor in _named(module):
        if isinstance(tensor, DTensor):
            if id(tensor) not in made:
                made[id(tensor)] = _whole(tensor)
            own[name] = made[id(tensor)]
    return None


def remove_sharding(snapshot: ModuleSnapshot) -> None:
    """Remove `fully_shard` and the strategy's other changes from modules. Parameters stay as they are."""
    snapshot.undo()
    for each in snapshot.modules():
        forget_sharding(each)


def _whole(tensor: DTensor) -> torch.Tensor:
    whole = tensor.to_local().detach()
    if not isinstance(tensor, nn.Parameter):
        return whole
    parameter = nn.Parameter(whole, requires_grad=tensor.requires_grad)
    if isinstance(tensor.grad, DTensor):
        parameter.grad = tensor.grad.to_local()
    return parameter


def _differs(name: str, how: str) -> CombinationError:
    return CombinationError(
        f"{name!r} was sharded in another way in the run before, from which this process has only a shard of it: "
        f"{how}; keep the strategy's settings, or make a new module and load the checkpoint of that run, as in "
        "trainer.validate(Net(), loader, ckpt_path=...)"
    )


def _layout(tensor: DTensor) -> tuple[Any, ...]:
    return tuple(tensor.device_mesh.shape), tuple(tensor.placements), tuple(tensor.to_local().shape)


def _named(root: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, torch.Tensor]]:
    """Yield (full name, dict that has it, name in that dict, tensor) for every use of each parameter and buffer."""
    for prefix, module in root.named_modules():
        for name, tensor in own_tensors(module):
            yield f"{prefix}.{name}" if prefix else name, own_table(module, name), name, tensor
