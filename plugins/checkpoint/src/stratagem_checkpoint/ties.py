"""Tied tensors: keys whose values are the very same memory, written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

_EMPTY = -1


def local_ties(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Number this rank's tensors so that those that share memory, shape and strides share a number.

    A tensor without elements on this rank gets -1: whether it is tied can't be seen here.
    """
    numbers: dict[Any, int] = {}
    return {key: _number(tensor, numbers) for key, tensor in tensors.items()}


def find_aliases(ties: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Find the tied keys of a checkpoint.

    Args:
        ties: `local_ties` of all ranks.

    Returns:
        Each key that needn't be written → the first key of the same tensor. Two keys are tied only if
        they are on every rank that has either.
    """
    first: dict[tuple[int | None, ...], str] = {}
    aliases: dict[str, str] = {}
    for key in dict.fromkeys(key for of_rank in ties for key in of_rank):
        signature = tuple(of_rank.get(key) for of_rank in ties)
        if all(number in (None, _EMPTY) for number in signature):
            continue
        if signature in first:
            aliases[key] = first[signature]
        else:
            first[signature] = key
    return aliases


def _number(tensor: torch.Tensor, numbers: dict[Any, int]) -> int:
    placement: tuple[Any, ...] = ()
    local = tensor.detach()
    if isinstance(local, DTensor):
        placement = (local.shape, local.device_mesh, local.placements)
        local = local.to_local()
    if local.numel() == 0:
        return _EMPTY
    memory = (local.device, local.untyped_storage().data_ptr(), local.storage_offset())
    return numbers.setdefault((*memory, local.dtype, local.shape, local.stride(), placement), len(numbers))
