"""Collectives among the processes of an open `torch.distributed` group."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stratagem.collectives.arguments import check_reduction, check_source, check_tensor, described
from stratagem.collectives.arrival import all_arrive
from stratagem.collectives.base import Collectives, ReduceOp
from stratagem.collectives.torch_private import is_on, store_of
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
    """Collectives over a group that the caller opens and closes, such as one dimension of a mesh.

    Args:
        group: a group that has this process. Ranks are those within the group.
        device: the device on which tensors are expected.
        local_rank: index of this process among those of its node, whether they are in the group or not.
        node_rank: index of this node among all.
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
        check_reduction(tensor, op)
        whole = op == "mean" and not (tensor.is_floating_point() or tensor.is_complex())
        # The mean fits into the tensor's dtype, but the sum may not.
        reduced = _copy(tensor.to(torch.int64) if whole else tensor)
        with self._named(f"all_reduce {op}"):
            self._agree(described(f"all_reduce {op!r}", tensor))
            dist.all_reduce(reduced, _OPS[op], self._group)
        if whole:
            return reduced.div_(self.world_size, rounding_mode="trunc").to(tensor.dtype)
        return reduced.div_(self.world_size) if op == "mean" else reduced

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        check_tensor("all_gather", tensor)
        flows = sync_grads and tensor.requires_grad and torch.is_grad_enabled()
        with self._named("all_gather"):
            self._agree(described(f"all_gather{' with gradients' * flows}", tensor))
            if sync_grads:
                gathered: torch.Tensor = _AllGather.apply(tensor, self._group)  # type: ignore[no-untyped-call]  # torch has no types for it
                return gathered
            return _all_gather(tensor.detach(), self._group)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        check_source(src, self.world_size)
        source = dist.get_global_rank(self._group, src)
        call = f"broadcast from rank {src}"
        with self._named(call):
            self._agree(described(call, value if isinstance(value, torch.Tensor) else None))
            if isinstance(value, torch.Tensor):
                received = _copy(value)
                dist.broadcast(received, source, self._group)
                return received
            box = [value]
            dist.broadcast_object_list(box, source, self._group, device=torch.device("cpu"))
            return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.world_size
        with self._named("gather_objects"):
            self._agree("gather_objects")
            dist.all_gather_object(gathered, value, self._group)
        return gathered

    def barrier(self, name: str | None = None) -> None:
        with self._named(f"barrier {name!r}" if name else "barrier"):
            dist.barrier(self._group)

    def all_arrive(self, name: str, timeout_s: float) -> bool:
        if self.world_size == 1:
            return True
        return all_arrive(store_of(self._group), name, self.rank, self.world_size, timeout_s)

    def _agree(self, call: str) -> None:
        """Check that all ranks make the same call. Otherwise torch would mix up values, hang or abort.

        One small collective is enough: all digests of calls are the same if the largest and the smallest are.
        """
        digest = _digest(call)
        both = torch.tensor([digest, -digest], device=self._agreeing_on)
        dist.all_reduce(both, dist.ReduceOp.MAX, self._group)
        largest, smallest = both.tolist()
        if largest == -smallest:
            return
        calls: list[Any] = [None] * self.world_size
        dist.all_gather_object(calls, call, self._group)
        other = next(rank for rank, theirs in enumerate(calls) if theirs != calls[0])
        raise CollectiveError(
            f"ranks don't call the same collective: rank 0 calls {calls[0]}, and rank {other} calls {calls[other]}; "
            "all ranks must make the same calls in the same order, with tensors of the same shape and dtype"
        )

    @cached_property
    def _agreeing_on(self) -> torch.device:
        # On the CPU if the group has it: reading the result from a GPU would wait for the GPU.
        cpu = torch.device("cpu")
        return cpu if is_on(self._group, cpu) else self.device

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch raises DistBackendError and plain RuntimeErrors alike
            raise CollectiveError(
                f"rank {self.rank} of {self.world_size} failed in {what}: {error}"
            ) from error


@lru_cache(maxsize=1024)
def _digest(call: str) -> int:
    """Return a hash of 62 bits, the same in every process."""
    return int.from_bytes(sha256(call.encode()).digest()[:8], "little") >> 2


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _all_gather(tensor, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Each rank's loss may depend on every part, so a part's gradient is the sum over ranks. Copy before reducing
        # in place: autograd may use the same tensor elsewhere.
        grad = _copy(grads[0])
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy for an in-place collective, which ignores strides: these may differ between ranks."""
    tensor = tensor.detach()
    return (
        tensor.clone(memory_format=torch.contiguous_format)
        if tensor.layout is torch.strided
        else tensor.clone()
    )


def _all_gather(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(parts, tensor.contiguous(), group)
    return torch.stack(parts)
