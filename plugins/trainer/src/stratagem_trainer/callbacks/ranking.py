"""`Ranking`: which checkpoints a `ModelCheckpoint` keeps, and so may delete."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

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
    retained: tuple[str, ...] = ()
    """Those of `paths` that are never to be deleted."""
    retained_step: int = 0
    retained_at_s: float | None = None
    """When, by the wall clock, or when the first one was saved."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ranking:
        """Return the ranking whose `state` this is."""
        known = {name: state[name] for name in asdict(cls()) if name in state}
        known["kept"] = tuple(Kept(**entry) for entry in state["kept"])
        return cls(
            **{**known, "outdone": tuple(state["outdone"]), "retained": tuple(known.get("retained", ()))}
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        state = asdict(self)
        return {**state, **{name: list(state[name]) for name in ("kept", "outdone", "retained")}}

    def paths(self) -> set[str]:
        return {entry.path for entry in self.kept} | ({self.newest} if self.newest else set())

    def confined(self) -> Ranking:
        """Forget paths outside `folder`: they came with a checkpoint, which may be untrusted."""
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
