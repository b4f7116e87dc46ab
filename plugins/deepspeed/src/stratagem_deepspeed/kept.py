"""Shards that stage 3 leaves in a process after a run: this rank's part of each parameter, for the next run."""

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
    """Id of a parameter → this rank's flat shard, and the shape of the full parameter."""


def own_parts(
    original_module: nn.Module, partitioned: Partitioned
) -> list[tuple[nn.Parameter, torch.Tensor, torch.Size]]:
    """Return the arguments of `keep` for a module that is in an engine at stage 3. Not collective.

    Returns:
        An empty list if some of a parameter is only on NVMe.
    """
    with suppress(UsageError):  # `check_assigned` has raised it before, unless the run ends with an error
        partitioned.follow_changes()
    parts: list[tuple[nn.Parameter, torch.Tensor, torch.Size]] = []
    for parameter in original_module.parameters():
        zero3: Any = parameter
        if not hasattr(zero3, "ds_tensor"):
            continue  # added after setup (see `check_known`), so it isn't sharded
        part = partitioned.own_part(zero3)
        if part.numel() != zero3.ds_tensor.ds_numel:
            return []
        parts.append((parameter, part, zero3.ds_shape))
    return parts


def keep(parts: Iterable[tuple[nn.Parameter, torch.Tensor, torch.Size]]) -> KeptParts:
    """Keep this rank's shards of a module's parameters. The parameters get their shapes back, without values.

    Args:
        parts: each parameter, this rank's flat shard (equally long on each rank), and the full shape.
    """
    kept = KeptParts({})
    for parameter, part, shape in parts:
        kept.parts[id(parameter)] = (part, shape)
        # One element in memory. It is NaN, so that computing with it shows.
        filler = float("nan") if part.is_floating_point() else 0
        parameter.data = torch.full((1,), filler, dtype=part.dtype, device=part.device).expand(shape)
    return kept


class Parts:
    """Gathers the full parameters from kept shards, a few at a time.

    Args:
        kept: the `KeptParts` that the run before left, in as many processes; anything else means a full module.
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
