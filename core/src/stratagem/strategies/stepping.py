"""Functions for all loops, which run a micro-batch or drop gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stratagem.errors import CombinationError
from stratagem.strategies.loss_sum import weight_of

if TYPE_CHECKING:
    from stratagem.strategies.prepared import Prepared


def run_micro_batch(prepared: Prepared, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
    """Run `Prepared.forward_backward`, and complete the gradients of losses that have weights.

    Loops call this function instead of the method, with the method's arguments. Collective if `sync` is True.

    Raises:
        CombinationError: a loss has a weight, and the strategy ignores weights.
    """
    weights = prepared.loss_weights
    weights.is_last = sync
    output = prepared.forward_backward(*args, divisor=divisor, sync=sync)
    if weights.is_used:
        if sync:
            weights.complete()
    elif not isinstance(output, torch.Tensor) and weight_of(output) is not None:
        # The strategy overrides forward_backward, and has treated the loss as a mean.
        raise CombinationError(
            "training_step returned a loss with a weight, and this strategy doesn't divide by weights: return the "
            "mean of the losses, or choose another strategy"
        )
    return output


def drop_gradients(prepared: Prepared, index: int, set_to_none: bool) -> None:
    """Call `zero_grad` of a prepared optimizer. Without `set_to_none`, keep its gradients, filled with zeros."""
    groups = () if set_to_none else prepared.optimizers[index].param_groups
    kept = [(p, p.grad) for group in groups for p in group["params"] if p.grad is not None]
    prepared.zero_grad(index)
    prepared.loss_weights.drop(index)
    for parameter, gradient in kept:
        parameter.grad = gradient.detach().zero_()
