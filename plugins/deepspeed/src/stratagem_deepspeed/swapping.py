"""Loads stage 3's flat shards, which may be on NVMe, into memory while they are written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def resident(zero: Any, sub_group: int) -> Iterator[torch.Tensor]:
    """Load a flat shard of parameters and its optimizer states into memory, and write them back afterwards.

    Args:
        zero: the engine's optimizer, at stage 3.
        sub_group: index of the flat shard. When it first has states, create all of them: the engine looks for
            states on NVMe only once.
    """
    flat = zero.fp32_partitioned_groups_flat[sub_group]
    swapper = zero.optimizer_swapper
    # The engine keeps shards that are smaller than a block of the drive in memory.
    if swapper is None or not swapper.is_swappable_tensor(
        numel=zero.fp16_partitioned_groups_flat_numel[sub_group]
    ):
        yield flat
        return
    swapper.swap_in_optimizer_state(parameter=flat, async_parameter=None)
    yield flat
    # Synchronous, since the next read may be of the same file.
    swapper.swap_out_optimizer_state(parameter=flat, async_swap=False)


def sub_group_of(zero: Any, parameter: nn.Parameter) -> int:
    """Return the index of the flat shard that holds this rank's part of a parameter."""
    return int(zero.grad_position[zero.get_param_id(parameter)][0])


def write_shard(zero: Any, parameter: nn.Parameter, own: torch.Tensor, state: str | None = None) -> None:
    """Set this rank's part of a parameter that the engine steps, or of one of its states.

    DeepSpeed's own accessors per shard fail on parameters that are on NVMe.

    Args:
        zero: the engine's optimizer, at stage 3.
        parameter: one of those that it steps.
        own: the flat part, padded as the engine pads it.
        state: the state's name; the parameter in 32 bits when None.
    """
    _, begin, count = zero.grad_position[zero.get_param_id(parameter)]
    with resident(zero, sub_group_of(zero, parameter)) as flat, torch.no_grad():
        target = flat if state is None else zero.optimizer.state[flat][state]
        target.narrow(0, begin, count).copy_(own)


def align_gradients(zero: Any) -> None:
    """Make the engine read gradients from the drive only at aligned offsets.

    The engine reads gradients directly into a buffer, at their offsets in the flat shard. Some file systems
    refuse unaligned offsets, and the engine doesn't check for that error: it would step with
    whatever was in the buffer. So the elements before the first aligned offset stay in memory.

    Args:
        zero: the engine's optimizer, at any stage.
    """
    swapper = getattr(zero, "optimizer_swapper", None)
    if swapper is None:
        return
    swap_out, alignment = swapper.swap_out_gradients, swapper.numel_alignment

    def swap_out_aligned(
        parameter: torch.Tensor, gradient_offsets: list[int], gradient_tensors: list[torch.Tensor]
    ) -> None:
        offsets: list[int] = []
        tensors: list[torch.Tensor] = []
        for offset, tensor in zip(gradient_offsets, gradient_tensors):
            before = -offset % alignment
            if before and before < tensor.numel():
                offsets += [offset, offset + before]
                tensors += [tensor[:before], tensor[before:]]
            else:
                offsets.append(offset)
                tensors.append(tensor)
        swap_out(parameter, offsets, tensors)

    swapper.swap_out_gradients = swap_out_aligned
