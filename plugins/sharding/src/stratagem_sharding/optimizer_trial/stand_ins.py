"""Small tensors that stand for an optimizer's parameters in its trial."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.optim import Optimizer

from stratagem.sdk.shards import Cut

ELEMENTS = 1 << 17
"""Maximum number of elements of a stand-in. Smaller parameters are tried in their own shape, so that the trial sees
behaviour that depends on the size, such as factored moments."""


def stand_ins(
    optimizer: Optimizer, cuts: Sequence[Cut], dtype: torch.dtype | None
) -> list[list[torch.Tensor]]:
    """Return small tensors for each group: one for each number of dimensions among its parameters."""
    # Two of each if whole parameters are distributed among ranks.
    factors = (1.0, 3.0) if "parameters" in cuts else (1.0,)
    generator = torch.Generator().manual_seed(1)
    seen: set[Any] = set()
    made = []
    for group in optimizer.param_groups:
        kinds: dict[Any, torch.Tensor] = {}
        for parameter in group["params"]:
            kind = (parameter.dim(), parameter.dtype)
            if kind not in kinds or parameter.numel() > kinds[kind].numel():
                kinds[kind] = parameter
        settings = tuple((key, repr(value)) for key, value in group.items() if _tells_kinds_apart(value))
        stand_ins: list[torch.Tensor] = []
        for kind, parameter in kinds.items():
            # Groups that differ only in numbers, such as a learning rate per layer, step the same way: try the first.
            is_new = (settings, kind) not in seen
            seen.add((settings, kind))
            shape = _small(parameter.shape) if is_new else tuple(min(2, side) for side in parameter.shape)
            device = "cpu" if parameter.is_meta else parameter.device
            for factor in factors:
                empty = torch.empty(shape, dtype=_wide(parameter.dtype, dtype), device=device)
                stand_ins.append(factor * random_like(empty, generator))
        made.append(stand_ins)
    return made


def _small(shape: Sequence[int]) -> tuple[int, ...]:
    """Return `shape` reduced to at most `ELEMENTS` elements, with even sizes of the first two dimensions."""
    sides = [max(1, side) for side in shape]
    while prod(sides) > ELEMENTS:
        sides[sides.index(max(sides))] //= 2
    return tuple(side if side < 2 or at > 1 else side - side % 2 for at, side in enumerate(sides))


def _tells_kinds_apart(value: Any) -> bool:
    return isinstance(value, (bool, str)) or value is None


def _wide(own: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    if wanted is None or not (own.is_floating_point or own.is_complex):
        return own
    return torch.complex128 if own.is_complex else wanted


def random_like(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    dtype = like.dtype if like.dtype.is_floating_point or like.dtype.is_complex else torch.float32
    return torch.randn(like.shape, generator=generator, dtype=dtype).to(like)


def halves(group: list[torch.Tensor], cut: Cut) -> list[list[torch.Tensor]]:
    """Return the shards of a group's tensors on each of two ranks."""
    if cut == "parameters":
        return [group[::2], group[1::2]]
    if cut == "flat":
        if not group:
            return [[], []]
        shards = torch.cat([tensor.detach().reshape(-1) for tensor in group]).chunk(2)
        return [[shard] for shard in (shards if len(shards) == 2 else (*shards, shards[0][:0]))]
    dim = 0 if cut == "rows" else -1
    halves: list[list[torch.Tensor]] = [[], []]
    for tensor in group:
        cut_here = tensor.dim() > (0 if cut == "rows" else 1) and tensor.shape[dim] > 1
        shards = tensor.detach().chunk(2, dim) if cut_here else (tensor.detach(), tensor.detach())
        for half, shard in zip(halves, shards):
            half.append(shard.contiguous())
    return halves
