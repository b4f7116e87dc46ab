"""Makes DistributedDataParallel reduce although no backward reaches its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stratagem_ddp.torch_private import mark_ready


class NoneAllowed(nn.Module):
    """Calls `module`, and returns `nothing` in place of None.

    DistributedDataParallel looks for tensors in a forward's output, and fails on None.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.nothing = torch.zeros(())  # DistributedDataParallel returns the same object

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.module(*args, **kwargs)
        return self.nothing if output is None else output


class _MarkReady(torch.autograd.Function):
    """Runs a function in a backward, the only place where torch lets a reducer finish."""

    @staticmethod
    def forward(ctx: Any, start: torch.Tensor, mark: Callable[[], None]) -> torch.Tensor:
        ctx.mark = mark
        return start.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None]:
        ctx.mark()
        return None, None


def reduce_as_they_are(
    ddp: DistributedDataParallel,
    parameters: Sequence[torch.Tensor],
    order: Sequence[int] | None,
    backward: Callable[[torch.Tensor], None],
) -> None:
    """Reduce the current gradients of parameters without a backward. A missing gradient counts as zeros.

    Parameter hooks aren't called. With find_unused_parameters, those without a gradient count as unused.
    Collective; other ranks may run an ordinary backward instead.

    Args:
        ddp: must not be in a backward.
        parameters: those that `ddp` reduces.
        order: positions of all these parameters, in the order in which they become ready; None for any order.
        backward: runs the backward of a scalar.
    """
    reducer: Any = ddp.reducer
    # A forward without a loss has marked all parameters unused; prepare again so that all are reached.
    finds_unused = ddp.find_unused_parameters and not ddp.static_graph
    if finds_unused:
        # Parameters frozen since count as unused, which marks them ready.
        order = [index for index, parameter in enumerate(parameters) if parameter.requires_grad]
        reducer.prepare_for_backward([_touching(parameters[index] for index in order)])
    else:
        reducer.prepare_for_backward([])
    positions = range(len(reducer.get_backward_stats())) if order is None else order

    def mark() -> None:
        mark_ready(ddp, positions)

    with torch.enable_grad():
        start = torch.zeros((), device=ddp.device, requires_grad=True)
        backward(_MarkReady.apply(start, mark))  # type: ignore[no-untyped-call]  # torch has no types for it


def _touching(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return a tensor whose graph reaches all parameters without copying them."""
    with torch.enable_grad():
        return torch.stack([p.flatten()[:0].sum().real.float() for p in parameters]).sum()
