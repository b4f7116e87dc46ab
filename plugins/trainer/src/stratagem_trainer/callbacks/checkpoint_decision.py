"""`Keeper`: decides which checkpoint to write, and which ones to delete then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stratagem_trainer.callbacks.checkpoint_name import CheckpointName
from stratagem_trainer.callbacks.last_link import can_link, is_url
from stratagem_trainer.callbacks.monitor import Monitor
from stratagem_trainer.callbacks.ranking import Kept, Ranking
from stratagem_trainer.callbacks.retention import Retention


@dataclass(frozen=True)
class Moment:
    """The state of the run on which rank 0 decides."""

    folder: str
    epoch: int
    step: int
    values: Mapping[str, float | None]
    """Metric → value; None if it hasn't been logged."""
    ranks: bool = True
    """Whether the checkpoint may be one of the top k."""
    time_s: float = 0.0
    """Wall-clock time."""


@dataclass(frozen=True)
class Decision:
    """What all ranks do at a checkpoint. Rank 0 decides."""

    after: Ranking
    save: tuple[str, ...]
    link: bool


class Keeper:
    """Ranks checkpoints by a metric, or by age.

    Args:
        name: name of the checkpoints.
        monitor: reads the metric; None ranks by age.
        save_top_k: number of checkpoints to keep; -1 keeps all.
        save_last: whether to keep `last`, too.
        counts_versions: whether to append "-v1" to a name that exists and isn't this run's.
        retention: decides which checkpoints are never deleted.
        hides_last: whether the name of a checkpoint that is kept only as `last` begins with a dot.
    """

    def __init__(
        self,
        name: CheckpointName,
        monitor: Monitor | None,
        save_top_k: int,
        save_last: bool,
        counts_versions: bool,
        retention: Retention,
        hides_last: bool = False,
    ) -> None:
        self.name, self.monitor = name, monitor
        self.save_top_k, self.save_last = save_top_k, save_last
        self.counts_versions, self.retention = counts_versions, retention
        self.hides_last = hides_last
        self._can_link: bool | None = None

    def decide(self, before: Ranking, moment: Moment) -> Decision:
        """Return the checkpoints to save and to delete. Called on rank 0."""
        folder = moment.folder
        if before.folder != folder:
            # The run was resumed into another folder. Checkpoints in the old folder aren't this run's to delete.
            before = replace(before, folder=folder, kept=(), newest="", last_path="", retained=())
        before = before.confined()
        score = None if self.monitor is None else moment.values[self.monitor.name]
        named = {name: value for name, value in moment.values.items() if value is not None}
        path = f"{folder}/{self.name.fill(moment.epoch, moment.step, named)}{self.name.ending}"
        path = self._unused(path, before)
        candidate = Kept(path, score, moment.step)
        kept = before.kept
        if moment.ranks and self.save_top_k != 0 and (self.monitor is None or score is not None):
            kept = self._ranked(kept, candidate)
        if any(entry.path == candidate.path for entry in kept if entry != candidate):
            # Both checkpoints stay, so they need different names.
            renamed = replace(candidate, path=self._with(candidate.path, f"-step={moment.step}"))
            kept = tuple(renamed if entry == candidate else entry for entry in kept)
            candidate = renamed
        is_kept = candidate in kept
        last_s = moment.time_s if before.retained_at_s is None else before.retained_at_s
        after = replace(before, kept=kept, saved_step=moment.step, current_score=score, retained_at_s=last_s)
        stays = self.retention.retains(moment.step, moment.time_s, before.retained_step, last_s)
        if stays:
            after = replace(
                after,
                retained=(*before.retained, candidate.path),
                retained_step=moment.step,
                retained_at_s=moment.time_s,
            )
        if is_kept and (score is None or self._is_better(score, before.best_score)):
            after = replace(after, best_path=candidate.path, best_score=score)
        save = [candidate.path] if is_kept or stays else []
        if self.save_last:
            last = f"{folder}/last{self.name.ending}"
            after = replace(after, last_path=last)
            if self._can_link is None:
                self._can_link = can_link(last)
            if self._can_link:
                if self.hides_last and not is_kept and not stays:
                    hidden = f"{folder}/.last-step={moment.step}{self.name.ending}"
                    candidate = replace(candidate, path=hidden)
                after = replace(after, newest=candidate.path)
                save = [candidate.path]
            else:
                save.append(last)
        is_link = self.save_last and bool(self._can_link)
        outdone = before.paths() - after.paths() - set(after.retained)
        retained = tuple(path for path in after.retained if path in after.paths())
        after = replace(after, outdone=tuple(sorted(outdone)), retained=retained)
        return Decision(after, tuple(save), is_link)

    def _unused(self, path: str, before: Ranking) -> str:
        """Return a name that doesn't replace a checkpoint of another run."""
        own = {*before.paths(), *before.outdone}
        if not self.counts_versions or is_url(path) or path in own or not os.path.lexists(path):
            return path
        version = 1
        while os.path.lexists(other := self._with(path, f"-v{version}")) and other not in own:
            version += 1
        return other

    def _with(self, path: str, more: str) -> str:
        return f"{path.removesuffix(self.name.ending)}{more}{self.name.ending}"

    def _is_better(self, score: float, than: float | None) -> bool:
        return self.monitor is not None and self.monitor.better(score, than)

    def _ranked(self, kept: tuple[Kept, ...], candidate: Kept) -> tuple[Kept, ...]:
        """Return the top k with the candidate."""
        others = [entry for entry in kept if (entry.path, entry.step) != (candidate.path, candidate.step)]
        entries = [candidate, *others]
        if self.monitor is not None:
            monitor = self.monitor
            # The sort is stable: the earlier of two equal checkpoints ranks first.
            entries = sorted(
                [*others, candidate],
                key=lambda entry: monitor.order(float("nan") if entry.score is None else entry.score),
            )
        return tuple(entries if self.save_top_k == -1 else entries[: self.save_top_k])
