"""`ModelCheckpoint`: save checkpoints during a fit, and keep the best or the newest ones."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from stratagem.errors import CheckpointError, ConfigError
from stratagem.sdk.selection import path_text
from stratagem_trainer.callbacks.after_error import save_after_error
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.checkpoint_decision import Decision, Keeper, Moment
from stratagem_trainer.callbacks.checkpoint_name import CheckpointName
from stratagem_trainer.callbacks.last_link import can_link, folder_of, is_url, lies_in, link
from stratagem_trainer.callbacks.monitor import Mode, Monitor, check_count, check_mode
from stratagem_trainer.callbacks.ranking import Kept, Ranking
from stratagem_trainer.callbacks.retention import Retention, check_interval
from stratagem_trainer.loggers.base import tell_saved
from stratagem_trainer.saving.run_dir import refuse_unwritable

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class ModelCheckpoint(Callback):
    """Save checkpoints at the end of epochs or every n steps, and delete those that better or newer ones replace.

    A checkpoint is deleted only after the one that replaces it is complete. NaN and infinite values rank last, and
    never count as the best. Rank 0 decides for all ranks.

    `last`, in the same folder, is the newest checkpoint; after the fit, it has the final state. It is a symbolic link
    if the folder supports links, so that nothing is written twice, and otherwise a separate checkpoint.

    Several of these callbacks in one run need different folders or file names.

    Args:
        dirpath: folder for the checkpoints; a relative one is within the run's folder. The default is the run's
            checkpoint folder.
        filename: name of the checkpoints; see `CheckpointName`. None is "{epoch}-{step}".
        monitor: name of the logged metric to rank by; None ranks by age, newest first.
        verbose: print a line for each checkpoint, on rank 0.
        save_last: whether to keep `last`, too; "link" is the same as True.
        save_top_k: number of checkpoints to keep; -1 keeps all, 0 none (except `last`).
        save_on_exception: whether to save "…-exception" if errors end the fit on all ranks at the same step.
        save_weights_only: leave out what only resuming needs: optimizers, schedulers, callbacks and progress.
        mode: whether smaller ("min") or larger ("max") values of the metric are better.
        auto_insert_metric_name: write names before values, as in "epoch=3-val_loss=0.1".
        every_n_train_steps: save after each n-th optimizer step. With a metric that evaluations log, the checkpoint
            is written after the next evaluation, so that its score is known.
        train_time_interval: save after the step in which this much time has passed since the last such save. Rank 0's
            clock decides; it is read after every batch.
        every_n_epochs: save after each n-th epoch; 0 for none. The default is 1, or 0 if one of the two arguments
            above is given.
        save_on_train_epoch_end: save at the end of an epoch (True) or after each of its validations (False). None:
            after validations, unless there is exactly one per epoch.
        enable_version_counter: append "-v1" to a name that another run has used in `dirpath`. False replaces the
            other run's checkpoint.
        keep_every_n_steps: never delete the first checkpoint at or after each n-th optimizer step.
        keep_time_interval: never delete a checkpoint if this much time has passed since the last one that was kept
            for that reason.

    Raises:
        ConfigError: an argument is invalid.
    """

    order = 100  # after the callbacks whose states go into the checkpoint
    judges_epochs = is_left_out_of_fast_dev_run = True
    is_restored_in_evaluations = False
    ranks_last, ending = True, ""  # whether the final state may be one of the top k; suffix of all names
    hides_last = False  # whether a checkpoint that is kept only as `last` gets a name that begins with a dot

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = True,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: Mode = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
        keep_every_n_steps: int | None = None,
        keep_time_interval: timedelta | None = None,
    ) -> None:
        owner = type(self).__name__
        check_mode(mode, owner)
        check_count(owner, "save_top_k", save_top_k, -1)
        counts = {"every_n_epochs": every_n_epochs, "every_n_train_steps": every_n_train_steps}
        for name, value in {**counts, "keep_every_n_steps": keep_every_n_steps}.items():
            if value is not None:
                check_count(owner, name, value, 0 if name in counts else 1)
        if save_last not in (True, False, "link", None):
            raise ConfigError(f'{owner} got save_last={save_last!r}; allowed are True, False and "link"')
        check_interval("train_time_interval", train_time_interval)
        if every_n_epochs is None and not every_n_train_steps and train_time_interval is None:
            every_n_epochs = 0 if every_n_train_steps == 0 else 1
        self._name = CheckpointName(
            "{epoch}-{step}" if filename is None else filename, auto_insert_metric_name, self.ending
        )
        names = dict.fromkeys((*([] if monitor is None else [monitor]), *self._name.metrics))
        self._monitors = tuple(Monitor(name, mode, owner) for name in names)
        self.monitor = monitor
        """Name of the metric; None for none."""
        self.save_top_k = save_top_k
        self.save_last = bool(save_last)
        self.every_n_epochs = every_n_epochs or None
        self.every_n_train_steps = every_n_train_steps or None
        self.train_time_interval = train_time_interval
        self.dirpath = None if dirpath is None else path_text("dirpath", dirpath)
        self.save_weights_only, self.save_on_exception = save_weights_only, save_on_exception
        self.save_on_train_epoch_end, self.verbose = save_on_train_epoch_end, verbose
        self._ranking = Ranking()
        self._keeper = Keeper(
            self._name,
            self._monitors[0] if monitor is not None else None,
            save_top_k,
            self.save_last,
            enable_version_counter and dirpath is not None,
            Retention(keep_every_n_steps, keep_time_interval),
            self.hides_last,
        )
        self._is_due = self._has_resumed = self._fitting = self._has_validated = False
        self._saved_at_s = 0.0
        self._before: Ranking | None = None  # the ranking to restore if the save in progress fails

    @property
    def given_dirpath(self) -> str | None:
        """The user's folder; None for the run's. Subclasses override it if `dirpath` has more than the folder."""
        return self.dirpath

    @property
    def best_model_path(self) -> str:
        """The best checkpoint, or without `monitor` the newest one that is kept; "" before any."""
        return self._ranking.best_path

    @property
    def best_model_score(self) -> float | None:
        """The metric's value at `best_model_path`."""
        return self._ranking.best_score

    @property
    def current_score(self) -> float | None:
        """The metric's value at the latest checkpoint."""
        return self._ranking.current_score

    @property
    def last_model_path(self) -> str:
        """The path of `last`; "" before the first checkpoint, or without `save_last`."""
        return self._ranking.last_path

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The top k, best first."""
        return self._ranking.kept

    @property
    def best_k_models(self) -> dict[str, float | None]:
        """Path → metric's value of the top k, best first."""
        return {entry.path: entry.score for entry in self.kept}

    def kept_paths(self) -> list[str]:
        """Return the paths of the checkpoints that it keeps: `last`, and the top k."""
        return list(dict.fromkeys((self._ranking.last_path, *(each.path for each in self._ranking.kept))))

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write `best_k_models` to a YAML file, by default to best_k_models.yaml in the checkpoints' folder."""
        import yaml

        with open(filepath or f"{self._ranking.folder}/best_k_models.yaml", "w", encoding="utf-8") as file:
            yaml.safe_dump(self.best_k_models, file, sort_keys=False)

    @property
    def state_key(self) -> str:
        interval_s = self.train_time_interval and self.train_time_interval.total_seconds()
        what = (self.monitor, self.every_n_epochs, self.every_n_train_steps, interval_s)
        return f"{type(self).__qualname__}{(*what, self.given_dirpath, self._name.template)}"

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._fitting, self._has_validated = stage == "fit", False
        if self._fitting and self.dirpath is not None:
            self._refuse_folder(trainer)
        self._saved_at_s = time.monotonic()
        self._is_due, self._has_resumed = self._is_due and self._has_resumed, False
        if self._fitting and self._ranking.folder == self.checkpoint_folder(trainer):
            self._remove_outdone(trainer)  # checkpoints that a killed run couldn't delete

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._is_turn(trainer) or self._is_time(trainer):
            waits = self.monitor is not None and self._monitors[0].from_evaluation
            self._is_due = waits or self._checkpoint(trainer, early=True)

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            self._has_validated = True
            if self.monitor is not None and self._monitors[0].from_evaluation and self._is_turn(trainer):
                # on_train_batch_end wasn't called for this step if another callback's checkpoint was resumed.
                self._is_due = True
            for monitor in self._monitors:
                monitor.before_evaluation(trainer)

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            for monitor in self._monitors:
                monitor.after_evaluation(trainer)
            if self._is_due or (self._is_epoch(trainer) and not self._saves_at_epoch_end(trainer)):
                self._checkpoint(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if self._is_due or (self._is_epoch(trainer) and self._saves_at_epoch_end(trainer)):
            self._checkpoint(trainer)

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if stage == "fit":
            self._fitting = self._is_due = False
            if self.save_last and trainer.global_step > max(self._ranking.saved_step, 0):
                self._checkpoint(trainer, early=True, ranks=self.ranks_last and self.monitor is None)
            elif trainer.is_main and os.path.islink(self._ranking.last_path):
                # `last` may be a link to a preemption checkpoint, which the trainer removes after the fit.
                trainer.when_saved(partial(link, self._ranking.newest, self._ranking.last_path))
            for monitor in self._monitors:
                monitor.finish(trainer)

    def on_exception(self, trainer: TrainerView, module: Module, error: BaseException) -> None:
        if self._before is not None and isinstance(error, CheckpointError):
            self._ranking = self._before
        if self.save_on_exception and self._fitting:
            metrics = {name: trainer.callback_metrics.get(name, float("nan")) for name in self._name.metrics}
            name = self._name.fill(trainer.current_epoch, trainer.global_step, metrics)
            save_after_error(
                trainer, f"{self.checkpoint_folder(trainer)}/{name}-exception", self.save_weights_only
            )

    def name_last(self, trainer: TrainerView, path: str, save: Callable[[str], object]) -> None:
        """Let `last` be a link to a checkpoint that this callback didn't write. Collective.

        Args:
            trainer: trainer of the fit.
            path: path of the newest checkpoint, which is complete.
            save: writes a checkpoint, for folders that don't support links.
        """
        if not self.save_last:
            return
        last = f"{self.checkpoint_folder(trainer)}/last{self.ending}"
        can = not is_url(path) and can_link(last) if trainer.is_main else False
        if not trainer.collectives.broadcast(can):
            save(last)
        elif trainer.is_main:
            link(path, last)

    def _is_epoch(self, trainer: TrainerView) -> bool:
        return self.every_n_epochs is not None and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _saves_at_epoch_end(self, trainer: TrainerView) -> bool:
        if self.save_on_train_epoch_end is not None:
            return self.save_on_train_epoch_end
        settings = trainer.settings
        is_usual = settings.check_val_every_n_epoch == 1 and settings.val_check_interval in (None, 1.0)
        return is_usual or not (self._has_validated or trainer.num_eval_batches)

    def _is_turn(self, trainer: TrainerView) -> bool:
        every, step = self.every_n_train_steps, trainer.global_step
        return every is not None and step % every == 0 and step not in (0, self._ranking.saved_step)

    def _is_time(self, trainer: TrainerView) -> bool:
        """Return whether `train_time_interval` has passed. Collective if it is given."""
        if self.train_time_interval is None:
            return False
        is_over = time.monotonic() - self._saved_at_s >= self.train_time_interval.total_seconds()
        if not trainer.collectives.broadcast(is_over) or trainer.global_step == self._ranking.saved_step:
            return False
        self._saved_at_s = time.monotonic()
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._ranking.state(),
            "is_due": self._is_due,
            "from_evaluation": [monitor.from_evaluation for monitor in self._monitors],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_due, self._has_resumed = state["is_due"], True
        for monitor, known in zip(self._monitors, state["from_evaluation"]):
            monitor.from_evaluation = known
        self._ranking = Ranking.from_state(state)

    def _checkpoint(self, trainer: TrainerView, early: bool = False, ranks: bool = True) -> bool:
        """Save and delete checkpoints; return whether the metric is missing, so that it must be saved again later."""
        self._is_due = False
        values = {monitor.name: monitor.read(trainer, early) for monitor in self._monitors}
        epoch, step = trainer.current_epoch, trainer.global_step
        moment = Moment(self.checkpoint_folder(trainer), epoch, step, values, ranks, time.time())
        decision: Decision = trainer.collectives.broadcast(
            self._keeper.decide(self._ranking, moment) if trainer.is_main else None
        )
        # The checkpoint contains the ranking, with itself in it: a resumed run continues with that.
        self._before, self._ranking = self._ranking, decision.after
        how = {"weights_only": True} if self.save_weights_only else {}
        try:
            for path in decision.save:
                trainer.save_checkpoint(path, **how)
                if self.verbose and trainer.is_main:
                    line = f"Epoch {epoch + 1}, step {step}: saved {path}"
                    trainer.when_saved(partial(print, line, flush=True))
            if decision.link and trainer.is_main:
                trainer.when_saved(partial(link, self._ranking.newest, self._ranking.last_path))
        except BaseException:
            self._ranking = self._before
            raise
        self.after_save(trainer, decision)
        self._remove_outdone(trainer)
        trainer.when_saved(partial(setattr, self, "_before", None))
        trainer.when_saved(partial(tell_saved, trainer.loggers if decision.save else (), self))
        return self.monitor is not None and values[self.monitor] is None

    def _refuse_folder(self, trainer: TrainerView) -> None:
        """Refuse a folder that isn't writable, before the first epoch. Collective.

        Raises:
            ConfigError: the folder isn't writable. Raised on every rank.
        """
        refusal = None
        if trainer.is_main and not is_url(self.checkpoint_folder(trainer)):
            try:
                refuse_unwritable(f"{type(self).__qualname__}'s dirpath", self.checkpoint_folder(trainer))
            except ConfigError as error:
                refusal = str(error)
        refusal = trainer.collectives.broadcast(refusal)
        if refusal is not None:
            raise ConfigError(refusal)

    def after_save(self, trainer: TrainerView, decision: Decision) -> None:
        """Called on every rank after checkpoints and the link were started, for subclasses that write more files."""

    def after_removal(self, trainer: TrainerView, path: str) -> None:
        """Called on every rank after a checkpoint was deleted, for subclasses that write more files."""

    def _remove_outdone(self, trainer: TrainerView) -> None:
        folder = self.checkpoint_folder(trainer)
        for path in self._ranking.outdone:
            if lies_in(folder, path):  # an untrusted checkpoint may name paths elsewhere
                trainer.remove_checkpoint(path)
                self.after_removal(trainer, path)
        self._ranking = replace(self._ranking, outdone=())

    def checkpoint_folder(self, trainer: TrainerView) -> str:
        """Return the folder of a run's checkpoints, without a slash at its end."""
        return folder_of(self.given_dirpath, trainer.run_dir, trainer.checkpoint_dir)
