"""`PruningCallback`: reports validations to a trial of Optuna, and ends a fit that its pruner gives up."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import Monitor

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    import optuna
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class PruningCallback(Callback):
    """Report a metric to an Optuna trial after each validation, and end the fit once the pruner says so.

    Reports are numbered from 0: of a metric that evaluations log there is one after each validation, of any other
    one after each epoch. Rank 0 reports and asks the pruner; then all ranks end the fit after the same step, as with
    `EarlyStopping`. `Trainer.fit` then raises `optuna.TrialPruned` in the process that called it, also where the fit
    ran in worker processes.

    Worker processes can't reach a study in memory. Give the study a storage that they can open::

        study = optuna.create_study(storage=JournalStorage(JournalFileBackend("study.log")))

    Args:
        trial: of Optuna, as the objective got it.
        monitor: name of a logged metric.

    Attributes:
        pruned: whether the pruner ended the last fit.
        num_reports: how many values were reported.

    Raises:
        ConfigError: `trial` isn't a trial, or the monitor is no name.
    """

    judges_epochs = is_left_out_of_fast_dev_run = True
    is_restored_in_evaluations = False

    def __init__(self, trial: optuna.trial.Trial, monitor: str = "val_loss") -> None:
        owner = type(self).__name__
        if not all(hasattr(trial, name) for name in ("report", "should_prune", "storage")):
            raise ConfigError(
                f"{owner} got trial={trial!r}; give the optuna.trial.Trial that the objective was called with"
            )
        self._trial: optuna.trial.Trial | bytes = trial
        self._monitor = Monitor(monitor, "min", owner, strict=True)  # whether less is better, the study knows
        self.pruned = False
        self.num_reports = 0
        self._fitting = False

    @property
    def monitor(self) -> str:
        """Name of the metric."""
        return self._monitor.name

    def setup(self, trainer: TrainerView, module: Module, stage: str) -> None:
        """Refuse a study that rank 0 can't reach.

        Raises:
            ConfigError: (on every rank) the study is in the memory of the launching process, and this is a worker.
        """
        if stage != "fit" or trainer.runtime.in_launching_process:
            return
        if trainer.collectives.broadcast(trainer.is_main and _is_in_memory(self._opened())):
            raise ConfigError(
                "PruningCallback got a trial of a study in memory, which worker processes can't reach: create the "
                'study with a storage, as optuna.create_study(storage="sqlite:///study.db")'
            )

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._fitting = stage == "fit"
        if self._fitting:
            self.pruned = False

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            self._monitor.before_evaluation(trainer)

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._fitting:
            self._monitor.after_evaluation(trainer)
            if self._monitor.from_evaluation:
                self._report(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if not self._monitor.from_evaluation:
            self._report(trainer)

    def on_fit_end(self, trainer: TrainerView, module: Module) -> None:
        self._monitor.finish(trainer)

    def after_launch(self, trainer: Any, module: Any, stage: str) -> None:
        """Tell the caller.

        Raises:
            optuna.TrialPruned: the pruner ended the fit.
        """
        if stage == "fit" and self.pruned:
            import optuna

            raise optuna.TrialPruned(f"pruned after report {self.num_reports - 1} of {self.monitor}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "pruned": self.pruned,
            "num_reports": self.num_reports,
            "from_evaluation": self._monitor.from_evaluation,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pruned = state["pruned"]
        self.num_reports = state["num_reports"]
        self._monitor.from_evaluation = state["from_evaluation"]

    def _report(self, trainer: TrainerView) -> None:
        value = self._monitor.read(trainer)
        if value is None or self.pruned:
            return
        should_prune = False
        if trainer.is_main:
            trial = self._opened()
            trial.report(value, self.num_reports)
            should_prune = trial.should_prune()
        self.num_reports += 1
        self.pruned = bool(trainer.collectives.broadcast(should_prune))
        if self.pruned:
            trainer.should_stop = True

    def _opened(self) -> optuna.trial.Trial:
        """The trial, in the process of rank 0: others may not have what opens its storage."""
        if isinstance(self._trial, bytes):
            self._trial = pickle.loads(self._trial)
        return self._trial  # type: ignore[return-value]  # what was pickled is a trial

    def __getstate__(self) -> dict[str, Any]:
        trial = self._trial
        return {**self.__dict__, "_trial": trial if isinstance(trial, bytes) else pickle.dumps(trial)}


def _is_in_memory(trial: optuna.trial.Trial) -> bool:
    import optuna

    return isinstance(trial.storage, optuna.storages.InMemoryStorage)
