"""Random numbers of a pipeline: the same where ranks run the same part of a step, others elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stratagem.sdk.loops import forked_rng

if TYPE_CHECKING:
    from stratagem import Collectives

_SPREAD = 0x9E3779B97F4A7C15
"""Odd, with its bits all over, so that neighbouring numbers make seeds far apart."""


class Seeds:
    """Seeds by batch, agreed upon once.

    The first and the last stage both run the user's step up to its call of the pipelined module: what it
    draws there, such as noise for the input and the loss, must be the same on both. Dropout in the
    stages draws other numbers on each. Whatever is drawn while a batch runs, the generators are
    afterwards as they were, so that ranks continue drawing alike elsewhere.

    Args:
        collectives: of all ranks.
        device: whose generator is seeded, too.
    """

    def __init__(self, collectives: Collectives, device: torch.device) -> None:
        self._collectives, self._device = collectives, device
        self._base: int | None = None
        self._batches = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around a batch. Collective the first time."""
        if self._base is None:
            # Drawn on every rank, so that all continue alike.
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
        """What a checkpoint keeps."""
        return {"base": self._base, "batches": self._batches}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; nothing from a run without a pipeline."""
        if state.get("base") is not None:
            self._base, self._batches = int(state["base"]), int(state["batches"])
