"""Gather whole tensors from shards, and write them back to shards."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from stratagem.errors import ShardedUseError
from stratagem.sdk.shards import fingerprint
from stratagem.sdk.torch_private import without_subclass_functions
from stratagem_sharding.torch_private import detached, local_shard
from stratagem_sharding.whole_tensors.reading_exchange import ReadingExchange

__all__ = ["gather", "gather_with_grad", "gather_without_agreement", "make_equal", "shard_like", "write"]

SHUFFLES_ROWS = torch.__version__ < "2.11"  # torch compares it as a version
"""Whether `full_tensor` returns rows in the wrong order if two mesh dimensions shard the same tensor dimension
unevenly (seen in torch 2.9, not in 2.11)."""


def agree(sharded: DTensor, operation: str) -> None:
    """Wait until all ranks that have shards of a tensor reach the same operation; see `ReadingExchange`."""
    mesh = sharded.device_mesh
    if mesh.size() > 1 and ReadingExchange.current is not None:
        shape = "×".join(map(str, sharded.shape)) or "one value"
        ReadingExchange.current.agree(mesh.mesh.flatten().tolist(), f"{operation} of a tensor ({shape})")


def gather(sharded: DTensor, operation: str) -> torch.Tensor:
    """Return a copy of the whole tensor, without a gradient. Collective.

    Args:
        sharded: a DTensor of any layout.
        operation: the operation that needs the whole tensor, for messages.

    Raises:
        ShardedUseError: not all ranks gather it, or torch can't gather this layout.
    """
    _refuse_shuffled(sharded, operation)
    if any(not placement.is_replicate() for placement in sharded.placements):
        agree(sharded, operation)
    return gather_without_agreement(sharded, operation)


def gather_without_agreement(sharded: DTensor, operation: str) -> torch.Tensor:
    """Return what `gather` returns, without its check: for code that all ranks are sure to reach. Collective."""
    _refuse_shuffled(sharded, operation)
    # Inference tensors have no version counter, by which writes to the whole tensor are noticed.
    with torch.inference_mode(False), torch.no_grad(), without_subclass_functions():
        whole = DTensor.full_tensor(detached(sharded))
        if sharded.is_contiguous():
            whole = whole.contiguous()  # torch 2.9 returns other strides for a tensor sharded by columns
        shares = whole.untyped_storage().data_ptr() == local_shard(sharded).untyped_storage().data_ptr()
        return whole.clone() if shares or whole.is_inference() else whole


def gather_with_grad(sharded: DTensor, operation: str) -> torch.Tensor:
    """Return the whole tensor, differentiably: its gradient is averaged over ranks, as in a forward. Collective."""
    whole: torch.Tensor = _Gather.apply(sharded, operation)  # type: ignore[no-untyped-call]  # torch has no types for it
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sharded: Any, operation: str) -> Any:
        ctx.sharded = sharded.device_mesh, tuple(sharded.placements)
        # autograd forbids in-place changes of a view that a Function returns, even within no_grad.
        return gather(sharded, operation).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        mesh, placements = ctx.sharded
        mean = grads[0].contiguous().clone()
        for dim in range(mesh.ndim):
            dist.all_reduce(mean, group=mesh.get_group(dim))
        mean /= mesh.size()
        with without_subclass_functions():
            return distribute_tensor(mean, mesh, placements, src_data_rank=None), None


def _refuse_shuffled(sharded: DTensor, operation: str) -> None:
    if not SHUFFLES_ROWS:
        return
    dims = [placement.dim for placement in sharded.placements if isinstance(placement, Shard)]
    if len(dims) > len(set(dims)):
        raise ShardedUseError(
            f"{operation} of a tensor whose rows are split and sharded, as by tensor_parallel_size and "
            f"data_parallel_size: torch {torch.__version__} brings them together in another order; use torch 2.11 or "
            "newer, or read no values of parameters and gradients"
        )


@torch.no_grad()
def shard_like(whole: torch.Tensor, sharded: DTensor) -> DTensor:
    """Return `whole` as a DTensor in the layout of `sharded`. Not collective."""
    with without_subclass_functions():
        return distribute_tensor(whole.detach(), sharded.device_mesh, sharded.placements, src_data_rank=None)


@torch.no_grad()
def write(sharded: DTensor, whole: torch.Tensor) -> None:
    """Write this rank's part of a whole tensor to its shard. Not collective.

    Raises:
        ShardedUseError: the shards are partial sums (`Partial`) that have not been reduced yet.
    """
    if any(placement.is_partial() for placement in sharded.placements):
        raise ShardedUseError(
            "this gradient has not been added up over the ranks yet, so it can't be changed: change it after "
            "clipping, or in the optimizer's step"
        )
    _refuse_shuffled(sharded, "a change")
    part = shard_like(whole.to(sharded.device), sharded)
    with without_subclass_functions():
        local_shard(sharded).copy_(local_shard(part))


def require_equal(whole: torch.Tensor, sharded: DTensor, operation: str) -> None:
    """Refuse a whole tensor that differs between ranks, before each rank writes its part of it. Collective.

    Raises:
        ShardedUseError: it differs: the shards would be parts of different tensors.
    """
    mesh = sharded.device_mesh
    if mesh.size() == 1:
        return
    agree(sharded, operation)
    own = fingerprint([whole.detach()], mesh_device(mesh)).reshape(1)
    for dim in range(mesh.ndim):
        group = mesh.get_group(dim)
        numbers = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(numbers, own, group=group)
        if any(int(number) != int(numbers[0]) for number in numbers):
            raise ShardedUseError(
                f"{operation} would write other values on each rank to a sharded tensor of shape "
                f"{tuple(sharded.shape)}: make them equal first, as by runtime.all_reduce(values)"
            )
        own = torch.stack(numbers).sum(0)


def mesh_device(mesh: DeviceMesh) -> torch.device:
    """Return the device of messages between the ranks of a mesh."""
    return torch.device(mesh.device_type)


def make_equal(whole: torch.Tensor, mesh: DeviceMesh) -> None:
    """Broadcast the values of a mesh's first rank to all its ranks. Collective."""
    if mesh.size() == 1:
        return
    dense = whole.detach().contiguous()
    for dim in range(mesh.ndim):
        group = mesh.get_group(dim)
        dist.broadcast(dense, dist.get_global_rank(group, 0), group=group)
    if dense.data_ptr() != whole.data_ptr():
        whole.detach().copy_(dense)
