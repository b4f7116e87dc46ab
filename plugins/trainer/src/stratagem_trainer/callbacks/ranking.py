"""`Ranking`: the checkpoints that a `ModelCheckpoint` keeps, and so may delete."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from stratagem_trainer.callbacks.last_link import lies_in


@dataclass(frozen=True)
class Kept:
    """A checkpoint among the top k."""

    path: str
    score: float | None
    step: int


@dataclass(frozen=True)
class Ranking:
    """What a `ModelCheckpoint` knows of its checkpoints. Each checkpoint contains it."""

    folder: str = ""
    kept: tuple[Kept, ...] = ()
    """Best first, or newest first without a metric."""
    newest: str = ""
    """Target of the link `last`, which is kept in addition to the top k."""
    best_path: str = ""
    best_score: float | None = None
    current_score: float | None = None
    last_path: str = ""
    saved_step: int = -1
    outdone: tuple[str, ...] = ()
    """Paths to delete when the save in progress is complete, or else when a run resumes from it."""
    retained: tuple[str, ...] = ()
    """Paths among `paths()` that are never deleted."""
    retained_step: int = 0
    retained_at_s: float | None = None
    """Wall-clock time at which the last of them, or else the first checkpoint, was saved."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ranking:
        """Return the ranking that `state` returned."""
        known = {name: state[name] for name in asdict(cls()) if name in state}
        known["kept"] = tuple(Kept(**entry) for entry in state["kept"])
        return cls(
            **{**known, "outdone": tuple(state["outdone"]), "retained": tuple(known.get("retained", ()))}
        )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint contains of it."""
        state = asdict(self)
        return {**state, **{name: list(state[name]) for name in ("kept", "outdone", "retained")}}

    def paths(self) -> set[str]:
        return {entry.path for entry in self.kept} | ({self.newest} if self.newest else set())

    def confined(self) -> Ranking:
        """Drop paths outside `folder`. They were read from a checkpoint, which may be untrusted."""
        foreign = sorted(path for path in self.paths() if not lies_in(self.folder, path))
        if not foreign:
            return self
        warnings.warn(
            f"the checkpoint from which this run resumes names checkpoints outside of {self.folder}, which are "
            f"ignored: {', '.join(foreign)}",
            stacklevel=2,
        )
        kept = tuple(entry for entry in self.kept if entry.path not in foreign)
        return replace(self, kept=kept, newest="" if self.newest in foreign else self.newest)
