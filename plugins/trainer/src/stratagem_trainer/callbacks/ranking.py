"""`Ranking`: which checkpoints a `ModelCheckpoint` keeps, and so may delete."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from stratagem_trainer.callbacks.last_link import lies_in


@dataclass(frozen=True)
class Kept:
    """A checkpoint that has its place among the top k."""

    path: str
    score: float | None
    step: int


@dataclass(frozen=True)
class Ranking:
    """What the callback knows between two checkpoints, which keep it in turn."""

    folder: str = ""
    kept: tuple[Kept, ...] = ()
    """Best first, or newest first where nothing is monitored."""
    newest: str = ""
    """What the link `last` names; kept beside the top k."""
    best_path: str = ""
    best_score: float | None = None
    current_score: float | None = None
    last_path: str = ""
    saved_step: int = -1
    outdone: tuple[str, ...] = ()
    """To be deleted once what is being saved is complete; by who resumes from it, at the latest."""

    def paths(self) -> set[str]:
        return {entry.path for entry in self.kept} | ({self.newest} if self.newest else set())

    def confined(self) -> Ranking:
        """Forget what isn't in `folder`: it came with a checkpoint, which anybody may have made."""
        foreign = sorted(path for path in self.paths() if not lies_in(self.folder, path))
        if not foreign:
            return self
        warnings.warn(
            f"the checkpoint that this run goes on from names checkpoints outside of {self.folder}, which are left "
            f"alone: {', '.join(foreign)}",
            stacklevel=2,
        )
        kept = tuple(entry for entry in self.kept if entry.path not in foreign)
        return replace(self, kept=kept, newest="" if self.newest in foreign else self.newest)
