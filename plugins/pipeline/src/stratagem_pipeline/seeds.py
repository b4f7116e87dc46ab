"""Random seeds of a pipeline: equal on ranks that run the same part of a step, different elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stratagem.sdk.loops import forked_rng

if TYPE_CHECKING:
    from stratagem import Collectives

_SPREAD = 0x9E3779B97F4A7C15
"""An odd multiplier with well-mixed bits, so that neighbouring numbers give very different seeds."""


class Seeds:
    """Seeds for each batch, from one base seed that all ranks share.

    The first and the last stage both run the user's step up to its call of the pipelined module. Random numbers
    that the step draws there, such as input noise, must be equal on both. Dropout in the stages draws
    different numbers on each rank. After each batch, the generators are restored, so that all ranks
    continue with the same random numbers.

    Args:
        collectives: of all ranks.
        device: its generator is seeded, too.
    """

    def __init__(self, collectives: Collectives, device: torch.device) -> None:
        self._collectives, self._device = collectives, device
        self._base: int | None = None
        self._batches = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run a batch, and restore the generators afterwards. Collective the first time."""
        if self._base is None:
            # Every rank draws, so that all generators stay in the same state.
            own = int(torch.randint(2**62, ()).item())
            self._base = int(self._collectives.broadcast(own))
        self._batches += 1
        with forked_rng(self._device):
            yield

    def plant(self, *what: int) -> None:
        """Seed the generators for one part of the current batch."""
        seed = self._base or 0
        for number in (self._collectives.data.rank, self._batches, *what):
            seed = ((seed ^ (number + 1)) * _SPREAD) % 2**63
            seed ^= seed >> 29
        torch.default_generator.manual_seed(seed)
        if self._device.type != "cpu":
            torch.get_device_module(self._device).manual_seed(seed)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"base": self._base, "batches": self._batches}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `state`. An empty one, from a run without a pipeline, is ignored."""
        if state.get("base") is not None:
            self._base, self._batches = int(state["base"]), int(state["batches"])
