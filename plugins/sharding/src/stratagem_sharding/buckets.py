"""Send many tensors in few messages: tensors of one dtype are flattened into buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["broadcast_coalesced", "flattened_buckets", "gradients_of_any"]

BUCKET = 8 * 2**20
"""Maximum number of elements in one message. A single larger tensor is sent in one message of its own."""


def flattened_buckets(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield `tensors` flattened into few buckets; changes to a bucket are copied back to its tensors.

    As in `for flat in flattened_buckets(gradients): dist.all_reduce(flat)`.

    Args:
        tensors: on one device, of any dtypes; in the same order on every rank of the collective.
    """
    for bucket in _buckets([tensor.detach() for tensor in tensors]):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        yield flat
        for tensor, part in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket])):
            tensor.copy_(part.view_as(tensor))


def broadcast_coalesced(tensors: Iterable[torch.Tensor]) -> None:
    """Broadcast rank 0's values of `tensors` to all ranks, in place. No DTensors. Collective."""
    for flat in flattened_buckets(tensors):
        dist.broadcast(flat, 0)


def gradients_of_any(
    parameters: Sequence[torch.Tensor], has_one: Iterable[bool], device: torch.device, group: Any = None
) -> list[torch.Tensor]:
    """Return the gradients that any rank contributes to, with zeros where this rank has none. Collective.

    Args:
        parameters: the same on every rank of the group.
        has_one: for each parameter, whether this rank contributes.
        device: device of the message that ranks exchange.
        group: all ranks when None.
    """
    any_has = torch.tensor(list(has_one), dtype=torch.uint8, device=device)
    if not len(any_has):
        return []
    dist.all_reduce(any_has, dist.ReduceOp.MAX, group=group)
    found = []
    for parameter, some in zip(parameters, any_has.tolist()):
        if some:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found.append(parameter.grad)
    return found


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    # Dtypes in order of first use: the order of a set would differ between processes.
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        bucket: list[torch.Tensor] = []
        size = 0
        for tensor in (tensor for tensor in tensors if tensor.dtype == dtype):
            if bucket and size + tensor.numel() > BUCKET:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.numel()
        yield bucket
