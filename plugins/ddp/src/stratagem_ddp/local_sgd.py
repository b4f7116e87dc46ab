"""Local SGD: replicas step independently, and their parameters are averaged every n steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets
from torch import nn

from stratagem import ConfigError

AUTO_PERIOD = 4
"""Optimizer steps between averages at the lowest level of a derived hierarchy."""


@dataclass(frozen=True)
class Level:
    """Groups of `size` neighbouring ranks average their parameters every `period` optimizer steps."""

    period: int
    size: int


def check_levels(sizes: Mapping[Any, Any]) -> tuple[Level, ...]:
    """Read "period → group size", lowest level first.

    Raises:
        ConfigError: the periods and sizes don't form a hierarchy.
    """
    levels = [Level(period, sizes[period]) for period in sizes]
    whole = all(isinstance(n, int) and n >= 1 for level in levels for n in (level.period, level.size))
    nested = whole and all(
        low.period < high.period and low.size < high.size and high.size % low.size == 0
        for low, high in pairwise(levels)
    )
    if not levels or not nested:
        raise ConfigError(
            f"period_group_size={dict(sizes)!r} makes no hierarchy: give periods in optimizer steps and group sizes "
            "in ranks, both growing, each size a multiple of the one before, as {4: 2, 8: 4}"
        )
    return tuple(levels)


def derived_levels(world_size: int, subgroup_size: int) -> tuple[Level, ...]:
    """Return a hierarchy for this number of ranks: group sizes and periods double as long as the sizes divide it.

    Args:
        world_size: number of ranks.
        subgroup_size: number of ranks that average their gradients in every step.
    """
    levels, size, period = [], subgroup_size * 2, AUTO_PERIOD
    while size < world_size and world_size % size == 0:
        levels.append(Level(period, size))
        size, period = size * 2, period * 2
    return (*levels, Level(period, world_size))


def fitting_levels(levels: tuple[Level, ...], world_size: int) -> tuple[Level, ...]:
    """Check that `levels` fit this number of ranks, and return them.

    Raises:
        ConfigError: a size doesn't divide the number of ranks, or the last size isn't equal to it.
    """
    for level in levels:
        if world_size % level.size:
            raise ConfigError(
                f"period_group_size has groups of {level.size} ranks, which don't divide the {world_size} ranks "
                'of this run: choose sizes that do, or "auto"'
            )
    if levels[-1].size != world_size:
        raise ConfigError(
            f"the last group size of period_group_size is {levels[-1].size}, and there are {world_size} ranks, which "
            f"would never agree: let it be {world_size}"
        )
    return levels


def fitting_subgroup(asked: int | None, world_size: int, local_world_size: int) -> int:
    """Return how many neighbouring ranks average their gradients at every step.

    Args:
        asked: the user's number; None is the number of ranks on a node, or 1 on a single node.
        world_size: number of ranks.
        local_world_size: number of ranks on this node.

    Raises:
        ConfigError: the user's number doesn't divide the number of ranks.
    """
    size = asked if asked is not None else (local_world_size if local_world_size < world_size else 1)
    if world_size % size:
        raise ConfigError(
            f"subgroup_size={size} doesn't divide the {world_size} ranks of this run: choose a size that does"
        )
    return size


class LocalSGD:
    """Averages parameters over ranks every few optimizer steps.

    Args:
        parameters: the trained parameters, in the same order on every rank.
        groups: (period in optimizer steps, process group or None for all ranks), lowest level first. If two levels
            are due, the higher one is used.
        warm_up: optimizer steps before the first average.
        drifts: whether replicas differ between averages, because gradients aren't averaged over all ranks.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        groups: list[tuple[int, dist.ProcessGroup | None]],
        warm_up: int,
        drifts: bool,
    ) -> None:
        self._parameters = parameters
        self._groups = groups
        self._warm_up = warm_up
        self._may_drift = drifts
        self.steps = 0
        """Optimizer steps so far."""

    def include(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average these parameters, too. Earlier ones stay included: even frozen, they differ between ranks."""
        known = self.ids
        self._parameters += [parameter for parameter in parameters if id(parameter) not in known]

    @property
    def ids(self) -> set[int]:
        """Ids of the parameters that are averaged."""
        return {id(parameter) for parameter in self._parameters}

    @property
    def drifted(self) -> bool:
        """Whether ranks have different parameters or optimizer states."""
        return self._may_drift and self.steps > self._warm_up and dist.get_world_size() > 1

    def after_step(self) -> None:
        """Count an optimizer step, and average parameters if a period is over. Collective."""
        since = self.steps - self._warm_up
        self.steps += 1
        if since < 0:
            return
        for period, group in reversed(self._groups):
            if since % period == 0:
                average([parameter.data for parameter in self._parameters], group)
                return

    def agree(self) -> None:
        """Replace all ranks' parameters by their average, if they differ. Collective."""
        if self.drifted:
            average([parameter.data for parameter in self._parameters])

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While active, all ranks have the average of their parameters; afterwards their own again. Collective."""
        if not self.drifted:
            yield
            return
        own = [parameter.detach().clone() for parameter in self._parameters]
        self.agree()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._parameters, own):
                    parameter.copy_(value)


def average(tensors: list[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replace floating-point tensors by their means over the ranks of `group`, in place. Collective."""
    for flat in flattened_buckets(tensors):
        dist.all_reduce(flat.div_(dist.get_world_size(group)), group=group)
