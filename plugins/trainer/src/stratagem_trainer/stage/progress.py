"""`Progress`: the epoch, batch and step that a run has reached."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """The position of a run in its training; saved in every checkpoint."""

    epoch: int = 0
    """Index of the current epoch."""
    batch: int = 0
    """Micro-batches of this epoch whose gradients have been applied."""
    step: int = 0
    """Completed optimizer steps. A batch in which a module steps several optimizers counts once."""
    validated: int = 0
    """Value of `batch` at this epoch's last validation."""
    further_steps: int = 0
    """Steps to add to `step` for `max_steps`, if `LoopPolicy` counts each optimizer's steps."""
    batches_before: int = 0
    """Micro-batches of all earlier epochs."""
    epoch_is_over: bool = False
    """Whether all batches of this epoch, and its validation, are done."""

    @property
    def all_steps(self) -> int:
        """The number of steps that `max_steps` limits."""
        return self.step + self.further_steps

    def next_epoch(self) -> Progress:
        """Return the position at the start of the next epoch."""
        before = self.batches_before + self.batch
        return Progress(self.epoch + 1, 0, self.step, further_steps=self.further_steps, batches_before=before)

    def to_resume(self) -> dict[str, Any]:
        """Return the position at which a resumed run begins."""
        if self.epoch_is_over:
            return asdict(self.next_epoch())
        return asdict(self)
