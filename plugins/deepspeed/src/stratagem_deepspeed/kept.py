"""What stage 3 leaves of a module in a process: this rank's part of each parameter, for the next run to restore."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem import UsageError

if TYPE_CHECKING:
    from stratagem import Collectives
    from stratagem_deepspeed.partitioned import Partitioned


@dataclass(frozen=True)
class KeptParts:
    """`Prepared.left_shards` of stage 3."""

    parts: dict[int, tuple[torch.Tensor, torch.Size]]
    """Id of a parameter → this rank's part, flat, and the whole's shape."""


def own_parts(
    original_module: nn.Module, partitioned: Partitioned
) -> list[tuple[nn.Parameter, torch.Tensor, torch.Size]]:
    """Return what `keep` takes of a module that is in an engine at stage 3. Not collective.

    Returns:
        Nothing where the drive has some of it.
    """
    with suppress(UsageError):  # said already, where the run's end isn't an error
        partitioned.follow_changes()
    parts: list[tuple[nn.Parameter, torch.Tensor, torch.Size]] = []
    for parameter in original_module.parameters():
        zero3: Any = parameter
        if not hasattr(zero3, "ds_tensor"):
            continue  # see `check_known`: it is whole
        part = partitioned.own_part(zero3)
        if part.numel() != zero3.ds_tensor.ds_numel:
            return []
        parts.append((parameter, part, zero3.ds_shape))
    return parts


def keep(parts: Iterable[tuple[nn.Parameter, torch.Tensor, torch.Size]]) -> KeptParts:
    """Keep this rank's parts of a module's parameters, which get their shapes back without their values.

    Args:
        parts: each parameter, this rank's part, flat and equally long on each rank, and the whole's shape.
    """
    kept = KeptParts({})
    for parameter, part, shape in parts:
        kept.parts[id(parameter)] = (part, shape)
        # One number in memory: NaN, so that code that computes with it is noticed.
        filler = float("nan") if part.is_floating_point() else 0
        parameter.data = torch.full((1,), filler, dtype=part.dtype, device=part.device).expand(shape)
    return kept


class Parts:
    """Makes parameters of parts that were kept whole again, a few at a time.

    Args:
        kept: what the run before left, in as many processes, as `KeptParts`; else the module is whole.
        collectives: of all ranks.
    """

    def __init__(self, kept: object | None, collectives: Collectives) -> None:
        self._parts = kept.parts if isinstance(kept, KeptParts) else {}
        self._collectives = collectives

    def restore(self, parameters: Iterable[Any]) -> None:
        """Give parameters their values. Collective."""
        for parameter in parameters:
            part = self._parts.pop(id(parameter), None)
            if part is not None:
                own, shape = part
                flat = self._collectives.all_gather(own.to(self._collectives.device)).reshape(-1)
                parameter.data = flat[: shape.numel()].clone().view(shape)
