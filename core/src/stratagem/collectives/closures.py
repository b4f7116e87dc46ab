"""Closures whose loss is the mean over the ranks that read different batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives


def mean_closure(closure: Callable[[], Any] | None, data: Collectives) -> Callable[[], Any] | None:
    """Return a closure that returns the mean of `closure`'s losses over ranks.

    An optimizer whose step depends on the loss, such as LBFGS with a line search, then steps alike on all ranks.

    Args:
        closure: returns a scalar loss, or None, which counts as 0; called equally often by all ranks.
        data: the ranks that read different batches.
    """
    if closure is None or data.world_size == 1:
        return closure
    return lambda: mean_loss(closure(), data)


def mean_loss(loss: Any, data: Collectives) -> Any:
    """Return the mean of a scalar loss over ranks, or `loss` itself with a single rank. Collective.

    Args:
        loss: a tensor, a number, or None, which counts as 0.
        data: the ranks that read different batches.

    Returns:
        A float64 scalar on the CPU, equal on all ranks.
    """
    if data.world_size == 1:
        return loss
    import torch

    own = 0.0 if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
    return data.all_reduce(torch.tensor(own, dtype=torch.float64))
