"""Averages gradients from `torch.autograd.grad`, which no reduction after a backward averages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

import torch
from torch.distributed.tensor import DTensor

from stratagem_model_parallel.context.ranks import SequenceRanks
from stratagem_model_parallel.torch_private import is_taken


def complete_taken_gradients(
    parameters: Iterable[torch.Tensor], ranks: SequenceRanks, closing: ExitStack
) -> None:
    """Average results of `torch.autograd.grad` for parameters over the ranks that shard a sequence.

    Each rank only computes the gradient from its shard. `torch.autograd.grad` becomes collective.

    Args:
        parameters: sharded ones are ignored, since `torch.autograd.grad` is refused for them.
        ranks: the ranks among which sequences are sharded.
        closing: removes the hooks when it is closed.
    """
    if ranks.size == 1:
        return
    for parameter in parameters:
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            handle = parameter.register_hook(partial(_complete, parameter, ranks))  # type: ignore[no-untyped-call]  # torch has no types for it
            closing.callback(handle.remove)


def _complete(parameter: torch.Tensor, ranks: SequenceRanks, grad: torch.Tensor) -> torch.Tensor | None:
    return ranks.summed(grad) / ranks.size if is_taken(parameter) else None
