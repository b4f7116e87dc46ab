"""Replicas that are averaged in the background while each trains: async."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.drifting import Tensors
from stratagem_sharding.synchronised import SynchronisedPrepared
from torch import nn

from stratagem import CheckpointReader, SetupRequest
from stratagem_bagua.background import BackgroundMean
from stratagem_bagua.decentralized import PeersPrepared
from stratagem_bagua.gradients import reduce_gradients

if TYPE_CHECKING:
    from stratagem_bagua.strategy import BaguaStrategy


class AsyncPrepared(SynchronisedPrepared, PeersPrepared):
    """Averages gradients during the warm-up; then replicas train independently and apply averages as they arrive.

    Bagua's asynchronous model average (Gan et al., https://arxiv.org/abs/2107.01499, section 3; the idea is that of
    AD-PSGD, Lian et al., https://arxiv.org/abs/1710.06952): between two steps a rank submits its parameters, a
    thread averages them over all ranks, and between two later steps the rank moves by mean minus what it submitted,
    so that what it has learned meanwhile stays. No step waits for another rank.

    Args:
        request: as everywhere. Its collectives are of all ranks.
        strategy: has the settings, and opens the group in which parameters are averaged. Collective.

    Attributes:
        averaging: the averages that are on their way; None in one process.
    """

    def __init__(self, request: SetupRequest, strategy: BaguaStrategy) -> None:
        super().__init__(request)
        self._warmup_steps: int = strategy.settings["warmup_steps"]
        if self._warmup_steps:
            self.track(request)
        self._interval_s: float = strategy.settings["sync_interval_ms"] / 1000
        self.averaging: BackgroundMean | None = None
        if self._size > 1:
            group = strategy.open_group([range(self._size)])
            self.averaging = BackgroundMean(group, strategy.timeout.total_seconds())

    def reduce(self) -> None:
        parameters = self.synchronised()
        if self._size > 1 and parameters:
            reduce_gradients(parameters, self.device)
            self.note_reduced(parameters)

    def synchronised(self) -> list[nn.Parameter]:
        return super().synchronised() if self.steps < self._warmup_steps else []

    def after_step(self) -> None:
        mean = self.averaging
        if mean is None or self.steps < self._warmup_steps:
            return
        self.follow()
        self._move(mean.take())
        if not mean.is_busy and time.monotonic() - mean.ended_at >= self._interval_s:
            mean.give(self._snapshot())

    # What other code sees -------------------------------------------------------------------

    def settle(self) -> None:
        """Apply pending averages, so that all ranks have applied equally many. Collective."""
        mean = self.averaging
        if mean is None:
            return
        if mean.given < max(self._collectives.gather_objects(mean.given)):
            # Others have submitted, and wait for this rank; never for more than one.
            self._move(mean.take(wait=True))
            mean.give(self._snapshot())
        self._move(mean.take(wait=True))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.settle()
        with super().evaluating():
            yield

    def agree(self) -> None:
        self.settle()
        super().agree()

    def model_tensors(self) -> Tensors:
        self.settle()
        return super().model_tensors()

    def optimizer_tensors(self) -> Tensors:
        self.settle()
        return super().optimizer_tensors()

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self.settle()
        super().load(reader, state, model_only=model_only)

    def kept(self) -> tuple[Tensors, Tensors, dict[str, Any]]:
        return {}, {"steps": torch.tensor(self.steps)}, {}  # ranks may have made different numbers of them

    def restore(self, shared: Tensors, own: Tensors | None, state: Mapping[str, Any]) -> None:
        if own:
            self.steps = int(own["steps"])

    def release(self) -> None:
        if self.averaging is not None:
            self.averaging.close()
            self.averaging = None
        super().release()

    # --------------------------------------------------------------------------------------------

    def _snapshot(self) -> torch.Tensor:
        return self.flat().cpu()

    @torch.no_grad()
    def _move(self, by: torch.Tensor | None) -> None:
        if by is not None:
            self.fill(self.flat().add_(by.to(self.device)))
