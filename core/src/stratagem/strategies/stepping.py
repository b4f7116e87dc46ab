"""What loops have in common: the loss in what a step returned, and gradients dropped as the user says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stratagem.errors import DataError

if TYPE_CHECKING:
    from stratagem.strategies.prepared import Prepared


def loss_of(output: Any) -> torch.Tensor | None:
    """Return the loss in what a training step returned.

    Raises:
        DataError: there is none.
    """
    if output is None or isinstance(output, torch.Tensor):
        return output
    try:
        loss = output["loss"]
    except (TypeError, KeyError, IndexError) as error:
        raise DataError(
            f"training_step returned {type(output).__name__} without a loss: return a scalar tensor, "
            'a dict with the key "loss", or None to skip the batch'
        ) from error
    if not isinstance(loss, torch.Tensor):
        raise DataError(f'training_step returned a "loss" that is {type(loss).__name__}, not a tensor')
    return loss


def drop_gradients(prepared: Prepared, index: int, set_to_none: bool) -> None:
    """Call `zero_grad` of a prepared optimizer; gradients that were there are zeros then, unless `set_to_none`."""
    groups = () if set_to_none else prepared.optimizers[index].param_groups
    kept = [(p, p.grad) for group in groups for p in group["params"] if p.grad is not None]
    prepared.zero_grad(index)
    for parameter, gradient in kept:
        parameter.grad = gradient.detach().zero_()
