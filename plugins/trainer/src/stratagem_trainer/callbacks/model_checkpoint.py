"""`ModelCheckpoint`: saves checkpoints while a fit goes on, and keeps the best or the newest."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.checkpoint_name import CheckpointName
from stratagem_trainer.callbacks.last_link import can_link, folder_of, lies_in, link
from stratagem_trainer.callbacks.monitor import Mode, Monitor, check_count, check_mode
from stratagem_trainer.callbacks.ranking import Kept, Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratagem_trainer.module import Module
    from stratagem_trainer.view import TrainerView


@dataclass(frozen=True)
class _Decision:
    """What all ranks do at a checkpoint; made on rank 0."""

    after: Ranking
    save: tuple[str, ...]
    link: bool


class ModelCheckpoint(Callback):
    """Save checkpoints at the end of epochs or every so many steps, and delete the ones that are outdone.

    One that is outdone is deleted only once the one that replaces it is complete. Values that are NaN or
    infinite rank last, and never as the best. Rank 0 decides for all ranks.

    `last`, in the same folder, is the newest checkpoint, and at the end of the fit its last state. It is
    a symbolic link where the folder can have one, so that nothing is written twice, otherwise a
    checkpoint of its own.

    Several of these in one run need different folders or file names.

    Args:
        monitor: name of a logged metric to rank by; None ranks by age, newest first.
        mode: whether the metric should become small ("min") or large ("max").
        save_top_k: how many to keep; -1 keeps all, 0 none (but `last`).
        save_last: keep `last` too.
        every_n_epochs: save after each n-th epoch; by default each one, or none with `every_n_steps`.
        every_n_steps: save after each n-th optimizer step. With a metric that evaluations log, the
            checkpoint waits for the evaluation that follows, so that its score is its own.
        dirname: folder for the checkpoints; a relative one is within the run's folder. By default the
            run's checkpoint folder.
        filename: their names; see `CheckpointName`.

    Raises:
        ConfigError: a value that can't be meant.
    """

    order = 100
    is_left_out_of_fast_dev_run = True
    """After the callbacks whose states go into the checkpoint."""

    def __init__(
        self,
        monitor: str | None = None,
        mode: Mode = "min",
        save_top_k: int = 1,
        save_last: bool = True,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        dirname: str | None = None,
        filename: str = "epoch={epoch}-step={step}",
    ) -> None:
        owner = type(self).__name__
        check_mode(mode, owner)
        check_count(owner, "save_top_k", save_top_k, -1)
        for name, value in (("every_n_epochs", every_n_epochs), ("every_n_steps", every_n_steps)):
            if value is not None:
                check_count(owner, name, value, 1)
        if every_n_epochs is None and every_n_steps is None:
            every_n_epochs = 1
        self._name = CheckpointName(filename)
        names = dict.fromkeys((*([] if monitor is None else [monitor]), *self._name.metrics))
        self._monitors = tuple(Monitor(name, mode, owner) for name in names)
        self.monitor = monitor
        """Name of the metric; None for none."""
        self.save_top_k = save_top_k
        self.save_last = save_last
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        self.dirname = dirname
        self._ranking = Ranking()
        self._is_due = self._has_resumed = self._fitting = False
        self._can_link: bool | None = None

    @property
    def best_model_path(self) -> str:
        """The best checkpoint, or the newest of those kept where nothing is monitored; "" before any."""
        return self._ranking.best_path

    @property
    def best_model_score(self) -> float | None:
        """The metric of `best_model_path`."""
        return self._ranking.best_score

    @property
    def last_model_path(self) -> str:
        """The path of `last`; "" before any, or without `save_last`."""
        return self._ranking.last_path

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The top k, best first."""
        return self._ranking.kept

    @property
    def state_key(self) -> str:
        what = (self.monitor, self.every_n_epochs, self.every_n_steps, self.dirname, self._name.template)
        return f"{type(self).__qualname__}{what}"

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._fitting = stage == "fit"
        self._is_due, self._has_resumed = self._is_due and self._has_resumed, False
        if self._fitting and self._ranking.folder == self._folder(trainer):
            self._remove_outdone(trainer)  # what a kill has left

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._is_turn(trainer):
            return
        if self.monitor is not None and self._monitors[0].from_evaluation:
            self._is_due = True
        else:
            self._is_due = self._checkpoint(trainer, early=True)

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            if self.monitor is not None and self._monitors[0].from_evaluation and self._is_turn(trainer):
                # A run that resumes from another callback's checkpoint of this step hasn't seen its end.
                self._is_due = True
            for monitor in self._monitors:
                monitor.before_evaluation(trainer)

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            for monitor in self._monitors:
                monitor.after_evaluation(trainer)
            if self._is_due:
                self._checkpoint(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        is_turn = self.every_n_epochs is not None and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if self._is_due or is_turn:
            self._checkpoint(trainer)

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if stage == "fit":
            self._fitting = self._is_due = False
            if self.save_last and trainer.global_step > max(self._ranking.saved_step, 0):
                self._checkpoint(trainer, early=True, ranks=self.monitor is None)
            for monitor in self._monitors:
                monitor.finish(trainer)

    def _is_turn(self, trainer: TrainerView) -> bool:
        every, step = self.every_n_steps, trainer.global_step
        return every is not None and step % every == 0 and step not in (0, self._ranking.saved_step)

    def state_dict(self) -> dict[str, Any]:
        return {
            "is_due": self._is_due,
            "folder": self._ranking.folder,
            "kept": [asdict(entry) for entry in self.kept],
            "newest": self._ranking.newest,
            "best_model_path": self.best_model_path,
            "best_model_score": self.best_model_score,
            "last_model_path": self.last_model_path,
            "saved_step": self._ranking.saved_step,
            "outdone": list(self._ranking.outdone),
            "from_evaluation": [monitor.from_evaluation for monitor in self._monitors],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_due, self._has_resumed = state["is_due"], True
        for monitor, known in zip(self._monitors, state["from_evaluation"]):
            monitor.from_evaluation = known
        self._ranking = Ranking(
            folder=state["folder"],
            kept=tuple(Kept(**entry) for entry in state["kept"]),
            newest=state["newest"],
            best_path=state["best_model_path"],
            best_score=state["best_model_score"],
            last_path=state["last_model_path"],
            saved_step=state["saved_step"],
            outdone=tuple(state["outdone"]),
        )

    def _checkpoint(self, trainer: TrainerView, early: bool = False, ranks: bool = True) -> bool:
        """Save what is to be saved now; return whether it went unranked for want of the metric."""
        self._is_due = False
        values = {monitor.name: monitor.read(trainer, early) for monitor in self._monitors}
        decision: _Decision = trainer.collectives.broadcast(
            self._decide(trainer, values, ranks) if trainer.is_main else None
        )
        # The checkpoint itself must know that it was kept: a resumed run goes on from its state.
        before, self._ranking = self._ranking, decision.after
        try:
            for path in decision.save:
                trainer.save_checkpoint(path)
            if decision.link and trainer.is_main:
                link(self._ranking.newest, self._ranking.last_path)
        except BaseException:
            self._ranking = before
            raise
        self._remove_outdone(trainer)
        return self.monitor is not None and values[self.monitor] is None

    def _remove_outdone(self, trainer: TrainerView) -> None:
        folder = self._folder(trainer)
        for path in self._ranking.outdone:
            if lies_in(folder, path):  # a foreign checkpoint may name others
                trainer.remove_checkpoint(path)
        self._ranking = replace(self._ranking, outdone=())

    def _folder(self, trainer: TrainerView) -> str:
        return folder_of(self.dirname, trainer.run_dir, trainer.checkpoint_dir)

    def _decide(self, trainer: TrainerView, values: Mapping[str, float | None], ranks: bool) -> _Decision:
        """Say what to save and what to delete, from what is known and the metrics; on rank 0."""
        folder, before = self._folder(trainer), self._ranking
        if before.folder != folder:
            # Resumed into another folder: what lies in the old one isn't this run's to delete.
            before = replace(before, folder=folder, kept=(), newest="", last_path="")
        before = before.confined()
        step = trainer.global_step
        score = None if self.monitor is None else values[self.monitor]
        named = {name: value for name, value in values.items() if value is not None}
        candidate = Kept(f"{folder}/{self._name.fill(trainer.current_epoch, step, named)}", score, step)
        kept = before.kept
        if ranks and self.save_top_k != 0 and (self.monitor is None or score is not None):
            kept = self._ranked(kept, candidate)
        if any(entry.path == candidate.path for entry in kept if entry != candidate):
            # Of two that stay, neither may take the other's name.
            renamed = replace(candidate, path=f"{candidate.path}-step={step}")
            kept = tuple(renamed if entry == candidate else entry for entry in kept)
            candidate = renamed
        is_kept = candidate in kept
        after = replace(before, kept=kept, saved_step=step)
        if is_kept and (score is None or self._monitors[0].better(score, before.best_score)):
            after = replace(after, best_path=candidate.path, best_score=score)
        save = [candidate.path] if is_kept else []
        if self.save_last:
            last = f"{folder}/last"
            after = replace(after, last_path=last)
            if self._can_link is None:
                self._can_link = can_link(last)
            if self._can_link:
                after = replace(after, newest=candidate.path)
                save = [candidate.path]
            else:
                save.append(last)
        is_link = self.save_last and bool(self._can_link)
        after = replace(after, outdone=tuple(sorted(before.paths() - after.paths())))
        return _Decision(after, tuple(save), is_link)

    def _ranked(self, kept: tuple[Kept, ...], candidate: Kept) -> tuple[Kept, ...]:
        """Put the candidate where it belongs, and cut off after k."""
        others = [entry for entry in kept if (entry.path, entry.step) != (candidate.path, candidate.step)]
        entries = [candidate, *others]
        if self.monitor is not None:
            # Stable, so that of equals the earlier stays ahead.
            entries = sorted([*others, candidate], key=self._order)
        return tuple(entries if self.save_top_k == -1 else entries[: self.save_top_k])

    def _order(self, entry: Kept) -> tuple[bool, float]:
        return self._monitors[0].order(float("nan") if entry.score is None else entry.score)
