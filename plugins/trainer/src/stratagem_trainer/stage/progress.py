"""`Progress`: where a run is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """Where a run is; saved in every checkpoint."""

    epoch: int = 0
    """Index of the current epoch."""
    batch: int = 0
    """Micro-batches of this epoch whose gradients are in the parameters."""
    step: int = 0
    """Completed optimizer steps; of a module that steps several optimizers, batches in which one was stepped."""
    validated: int = 0
    """As `batch`, when this epoch was last validated."""
    further_steps: int = 0
    """How many more steps, of single optimizers, `LoopPolicy` counts."""
    batches_before: int = 0
    """Micro-batches of the epochs before."""
    epoch_is_over: bool = False
    """All batches of this epoch, and its validation, are done."""

    @property
    def all_steps(self) -> int:
        """What `max_steps` limits."""
        return self.step + self.further_steps

    def next_epoch(self) -> Progress:
        """Where the epoch after this one begins."""
        before = self.batches_before + self.batch
        return Progress(self.epoch + 1, 0, self.step, further_steps=self.further_steps, batches_before=before)

    def to_resume(self) -> dict[str, Any]:
        """Where a run that is continued from here begins."""
        if self.epoch_is_over:
            return asdict(self.next_epoch())
        return asdict(self)
