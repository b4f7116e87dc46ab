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
    """Ends the stage. All ranks raise it between two steps, or between two batches of an evaluation.

    Attributes:
        predictions: the results of a stopped prediction so far, one list per loader that was started.
    """

    predictions: list[Any] | None = None


class Boundary:
    """Checks, on all ranks, whether the stage must stop at a point where it could.

    Args:
        watch: an entered `PreemptionWatch`.
        beat: reports that this rank makes progress; None without a hang watch.
        collectives: of all ranks.
    """

    def __init__(
        self, watch: PreemptionWatch, beat: Callable[[], None] | None, collectives: Collectives
    ) -> None:
        self.watch, self.beat, self._collectives = watch, beat, collectives

    def pass_step(self) -> None:
        """Check after a step. Collective.

        Raises:
            StopNow: the stage must stop here.
        """
        if self.beat is not None:
            self.beat()
        if self.watch.is_due():
            raise StopNow

    def of_evaluation(self, num_batches: int | None, may_stop: bool) -> Callable[[int], None]:
        """Return a function to call with each batch's index before the batch is evaluated. Collective.

        Ranks may have different numbers of batches. They stop only at a batch index that all ranks have.

        Args:
            num_batches: number of batches on this rank; None if unknown.
            may_stop: whether the evaluation may be stopped.
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
