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
    """Completed optimizer steps."""
    validated: int = 0
    """As `batch`, when this epoch was last validated."""
    epoch_is_over: bool = False
    """All batches of this epoch, and its validation, are done."""

    def to_resume(self) -> dict[str, Any]:
        """Where a run that is continued from here begins."""
        if self.epoch_is_over:
            return asdict(Progress(self.epoch + 1, 0, self.step))
        return asdict(self)
