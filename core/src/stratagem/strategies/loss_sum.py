"""`LossSum`: a sum of losses and its weight. Functions that find the loss in a training step's output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from stratagem.errors import DataError, short


class LossSum(NamedTuple):
    """A sum of losses, and its weight: the number of losses that it sums.

    The gradient of a step is that of Σ loss / Σ weight. Both sums run over the step's micro-batches and over the
    ranks that read different batches. `training_step` may return a `LossSum`, or a dict with "loss" and "weight". See
    docs/guides/losses.md.
    """

    loss: torch.Tensor
    """A scalar with a graph: the sum over this micro-batch, such as of `cross_entropy(..., reduction="sum")`."""
    weight: torch.Tensor | float
    """How many losses were summed, such as the number of tokens with a label. A number, or a tensor with one element;
    a tensor on a GPU isn't copied to the CPU. 0 if the micro-batch has nothing to learn from."""

    def mean(self) -> torch.Tensor:
        """Return loss / weight of this micro-batch alone, without a graph; 0 where the weight is 0."""
        loss = self.loss.detach()
        weight = weight_on(self.weight, loss.device)
        return torch.where(weight > 0, loss / weight, 0.0)


def loss_of(output: Any) -> torch.Tensor | None:
    """Return the loss in a training step's output: the sum if it has a weight, None if the output is None.

    Raises:
        DataError: the output has no loss.
    """
    if output is None or isinstance(output, torch.Tensor):
        return output
    if isinstance(output, LossSum):
        loss: Any = output.loss
    else:
        try:
            loss = output["loss"]
        except (TypeError, KeyError, IndexError) as error:
            raise DataError(
                f"training_step returned {type(output).__name__} without a loss: return a scalar tensor, "
                'a LossSum, a dict with the key "loss", or None to skip the batch'
            ) from error
    if not isinstance(loss, torch.Tensor):
        raise DataError(f'training_step returned a "loss" that is {type(loss).__name__}, not a tensor')
    return loss


def weight_of(output: Any) -> torch.Tensor | float | None:
    """Return the weight in a training step's output; None if it has none."""
    if isinstance(output, LossSum):
        return output.weight
    return output.get("weight") if isinstance(output, Mapping) else None


def weight_on(weight: torch.Tensor | float, device: torch.device) -> torch.Tensor:
    """Return a weight as a scalar tensor on `device`, in float64 if the device has it, else in float32.

    Raises:
        DataError: the weight isn't a number, or is negative, infinite or NaN. For a tensor on a device other than the
            CPU, only the shape is checked, because reading its value would wait for the device.
    """
    dtype = _widest(device.type)
    if isinstance(weight, torch.Tensor):
        if weight.numel() != 1 or weight.is_complex():
            raise DataError(
                f"the weight of a loss is a tensor of shape {tuple(weight.shape)} and {weight.dtype}: give one number"
            )
        if weight.device.type == "cpu":
            _check(weight.item())
        return weight.detach().reshape(()).to(device, dtype)
    if not isinstance(weight, (int, float)):
        raise DataError(
            f"the weight of a loss is {short(weight)}: give a number, or a tensor with one element"
        )
    _check(weight)
    return torch.tensor(float(weight), dtype=dtype, device=device)


@lru_cache
def _widest(device_type: str) -> torch.dtype:
    try:
        torch.zeros((), dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def _check(weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise DataError(
            f"the weight of a loss is {weight}: give a number from 0, such as how many losses were summed"
        )
