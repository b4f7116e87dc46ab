"""`Boundary`: where a stage may stop, between steps and between batches of an evaluation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem_launch import PreemptionWatch

    from stratagem import Collectives


class StopNow(BaseException):
    """The stage is to end here; raised by all ranks between steps, or between batches of an evaluation.

    Attributes:
        predictions: of a prediction, those that there are: a list for each loader that was begun.
    """

    predictions: list[Any] | None = None


class Boundary:
    """Called by all ranks where a stage could stop.

    Args:
        watch: open.
        beat: reports that this rank makes progress; None without a hang watch.
        collectives: of all ranks.
    """

    def __init__(
        self, watch: PreemptionWatch, beat: Callable[[], None] | None, collectives: Collectives
    ) -> None:
        self.watch, self.beat, self._collectives = watch, beat, collectives

    def pass_step(self) -> None:
        """A step is over. Collective.

        Raises:
            StopNow: the stage ends here.
        """
        if self.beat is not None:
            self.beat()
        if self.watch.is_due():
            raise StopNow

    def of_evaluation(self, num_batches: int | None, may_stop: bool) -> Callable[[int], None]:
        """Return what to call with the index of each batch before it is evaluated. Collective.

        Ranks may have different numbers of batches: they stop at one that all have, or not at all.

        Args:
            num_batches: on this rank, where known.
            may_stop: whether the run could go on from here.
        """
        common = sys.maxsize if may_stop else 0
        if common and self._collectives.world_size > 1:
            own = torch.tensor(float(num_batches or 0), device=self._collectives.device)
            common = int(self._collectives.all_reduce(own, "min").item())

        def pass_batch(index: int) -> None:
            if index < common:
                self.pass_step()
            elif self.beat is not None:
                self.beat()

        return pass_batch
