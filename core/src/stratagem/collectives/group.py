"""Collectives among the processes of an open `torch.distributed` group."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stratagem.collectives.base import Collectives, ReduceOp
from stratagem.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPS = {
    "mean": dist.ReduceOp.SUM,
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


class GroupCollectives(Collectives):
    """Collectives over a group that somebody else opened and closes, such as one dimension of a mesh.

    Args:
        group: this process is in it. Ranks are those within the group.
        device: where tensors are expected.
        local_rank: this process among those of its node, whether they are in the group or not.
        node_rank: this node among all.
    """

    def __init__(self, group: Any, device: torch.device, *, local_rank: int = 0, node_rank: int = 0) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.local_rank, self.node_rank = local_rank, node_rank
        self.device = device

    @property
    def process_group(self) -> Any:
        return self._group

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        reduced = tensor.detach().clone()
        with self._named(f"all_reduce {op}"):
            dist.all_reduce(reduced, _OPS[op], self._group)
        if op != "mean":
            return reduced
        if reduced.is_floating_point() or reduced.is_complex():
            return reduced.div_(self.world_size)
        return reduced.div_(self.world_size, rounding_mode="trunc")

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        with self._named("all_gather"):
            if sync_grads:
                gathered: torch.Tensor = _AllGather.apply(tensor, self._group)  # type: ignore[no-untyped-call]
                return gathered
            return _all_gather(tensor.detach(), self._group)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        source = dist.get_global_rank(self._group, src)
        with self._named(f"broadcast from rank {src}"):
            if isinstance(value, torch.Tensor):
                received = value.detach().clone()
                dist.broadcast(received, source, self._group)
                return received
            box = [value]
            dist.broadcast_object_list(box, source, self._group, device=torch.device("cpu"))
            return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.world_size
        with self._named("gather_objects"):
            dist.all_gather_object(gathered, value, self._group)
        return gathered

    def barrier(self, name: str | None = None) -> None:
        with self._named(f"barrier {name!r}" if name else "barrier"):
            dist.barrier(self._group)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch raises DistBackendError and plain RuntimeErrors alike
            raise CollectiveError(
                f"rank {self.rank} of {self.world_size} failed in {what}: {error}"
            ) from error


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _all_gather(tensor, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Each rank's loss may depend on every part: a part's gradient is the sum over ranks.
        grad = grads[0].contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


def _all_gather(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(parts, tensor.contiguous(), group)
    return torch.stack(parts)
