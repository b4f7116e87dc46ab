"""What every rank has all of: buffers, and parameters that can't be cut."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def send_buffers(module: nn.Module) -> None:
    """Give every rank the buffers of rank 0, one message per dtype. Collective."""
    buffers = list(module.buffers())
    for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
        same = [buffer for buffer in buffers if buffer.dtype == dtype]
        flat = torch.cat([buffer.detach().reshape(-1) for buffer in same])
        dist.broadcast(flat, 0)
        for buffer, part in zip(same, torch.split(flat, [buffer.numel() for buffer in same])):
            buffer.detach().copy_(part.view_as(buffer))


def average_gradients(parameters: Sequence[nn.Parameter], device: torch.device) -> None:
    """Average gradients over ranks; one that any rank has counts as zero where it isn't. Collective.

    Averaging what is equal on all ranks already leaves it as it is, so that gradients may accumulate
    over several calls.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        return
    has_one = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.uint8)
    has_one = has_one.to(device)
    dist.all_reduce(has_one, dist.ReduceOp.MAX)
    for parameter, some in zip(trained, has_one.tolist()):
        if not some:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
