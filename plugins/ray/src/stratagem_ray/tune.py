"""`TuneCallback`: reports a fit to its trial of Ray Tune, also from worker processes."""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING, Any

import ray.tune
from stratagem_trainer.callbacks.base import Callback

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

_PLACES = ("epoch", "step")


class TuneCallback(Callback):
    """Report metrics, and a checkpoint if asked for, to the trial of Ray Tune in whose function `fit` is called.

    There is a report after each validation, or after each epoch of a fit without one. Rank 0 reports, and waits until
    Tune has the report: a scheduler such as `ASHAScheduler` ends the trial there. Where the fit runs in worker
    processes, the report goes through the process of the trial, which is the only one that Tune knows.

    Args:
        metrics: names of logged metrics, or a mapping from Tune's names to them; all that are numbers when None.
            "epoch" and "step" are where the fit is.
        save_checkpoints: let Tune keep a checkpoint with each report, from which
            `fit(ckpt_path=…)` continues exactly.

    Raises:
        ConfigError: `metrics` has something else than names.
    """

    judges_epochs = is_left_out_of_fast_dev_run = True

    def __init__(
        self, metrics: str | Sequence[str] | Mapping[str, str] | None = None, save_checkpoints: bool = False
    ) -> None:
        names = [metrics] if isinstance(metrics, str) else metrics
        if names is not None and not isinstance(names, Mapping):
            names = {name: name for name in names}
        if names is not None and not all(isinstance(word, str) for pair in names.items() for word in pair):
            raise ConfigError(
                f"TuneCallback got metrics={metrics!r}; give names of metrics, or a mapping to them"
            )
        self._names = names
        self.save_checkpoints = save_checkpoints
        self._trial: _Trial | None = None
        self._is_fit = self._has_validated = False

    def before_launch(self, trainer: Any, module: Any, dataloader: Any, stage: str) -> None:
        """Open the way from the workers to this process's trial.

        Raises:
            ConfigError: Tune doesn't run a trial in this process.
        """
        if stage != "fit":
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            trial = ray.tune.get_context().get_trial_id()
        if trial is None:
            raise ConfigError(
                "TuneCallback reports to a trial of Ray Tune, and this process runs none: call fit in the function "
                "that ray.tune.Tuner gets"
            )
        self._trial = _Trial()

    def after_launch(self, trainer: Any, module: Any, stage: str) -> None:
        self._trial = None

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._is_fit, self._has_validated = stage == "fit", False

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._is_fit:
            self._has_validated = True
            self._report(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if not self._has_validated:
            self._report(trainer)

    def _report(self, trainer: TrainerView) -> None:
        """Report on rank 0; every rank calls it."""
        path = None
        if self.save_checkpoints:
            # Tune copies it while it takes the report, so that one place is enough.
            path = os.path.join(trainer.checkpoint_dir, "tune")
            trainer.save_checkpoint(path)
            trainer.runtime.session.checkpointer.wait()
        is_over = False
        if trainer.is_main:
            assert self._trial is not None, "before_launch makes it"
            is_over = self._trial.report(self._chosen(trainer), path)
        if trainer.collectives.broadcast(is_over):
            trainer.should_stop = True

    def _chosen(self, trainer: TrainerView) -> dict[str, float]:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        logged |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        if self._names is None:
            return logged
        missing = [name for name in self._names.values() if name not in logged]
        if missing:
            raise ConfigError(
                f"TuneCallback needs {missing[0]!r}, which isn't logged; logged are: "
                f"{', '.join(name for name in logged if name not in _PLACES) or 'nothing'}"
            )
        return {name: logged[key] for name, key in self._names.items()}


class _Trial:
    """The trial of the process in which this is made; copies in other processes report through that process."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="stratagem-tune-")
        self._address = os.path.join(folder, "reports")
        self._key = os.urandom(32)
        self._pid = os.getpid()
        listener = Listener(self._address, "AF_UNIX", authkey=self._key)
        weakref.finalize(self, _close, listener, folder)
        threading.Thread(target=_listen, args=(listener,), name="stratagem-tune", daemon=True).start()

    def report(self, metrics: dict[str, float], path: str | None) -> bool:
        """Report, and wait until Tune has it.

        Returns:
            Whether Tune has ended the trial.
        """
        if os.getpid() == self._pid:
            _report(metrics, path)
            return False
        with Client(self._address, "AF_UNIX", authkey=self._key) as connection:
            connection.send((metrics, path))
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)


def _listen(listener: Listener) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError:  # closed
            return
        with connection:
            metrics, path = connection.recv()
            answer: Exception | bool = False
            try:
                _report(metrics, path)
            except SystemExit:  # Tune's way to end the function
                answer = True
            except Exception as error:
                answer = error
            connection.send(answer)


def _report(metrics: dict[str, float], path: str | None) -> None:
    checkpoint = None if path is None else ray.tune.Checkpoint.from_directory(path)
    ray.tune.report(metrics, checkpoint=checkpoint)


def _close(listener: Listener, folder: str) -> None:
    listener.close()
    os.rmdir(folder)
