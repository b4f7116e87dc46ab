"""`AimLogger`: sends metrics to Aim."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stratagem_trainer.loggers.base import Row
from stratagem_trainer.loggers.library import LibraryLogger

from stratagem.sdk.selection import path_text


class AimLogger(LibraryLogger):
    """A run of Aim, in a repository on this machine or on a server. `experiment` is the `aim.Run`.

    Args:
        repo: folder of the repository, or aim://HOST:PORT. None is the nearest folder with .aim/, searched from the
            current folder upwards, or the current folder if there is none.
        experiment: name of the experiment.
        run_name: name of the run; None is its hash.
        run_hash: hash of a run to continue.
        prefix: put before the names of metrics, joined by "-".
        run: other arguments of `aim.Run`. `capture_terminal_logs` is False by default.

    Raises:
        UsageError: the package aim isn't installed.
    """

    library = package = "aim"

    def __init__(
        self,
        repo: str | os.PathLike[str] | None = None,
        experiment: str | None = "stratagem",
        run_name: str | None = None,
        run_hash: str | None = None,
        prefix: str = "",
        **run: Any,
    ) -> None:
        super().__init__(prefix)
        self._repo = None if repo is None else path_text("repo", repo)
        self._experiment_name, self._run_name, self._hash = experiment, run_name, run_hash
        self._run = {"capture_terminal_logs": False, **run}

    @property
    def name(self) -> str | None:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str | None:
        """Hash of the run; None before it starts, unless it was given."""
        return self._hash

    @property
    def save_dir(self) -> str | None:
        return self._repo

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self.experiment["hparams"] = dict(params)

    def _go_on(self, version: str | None) -> None:
        self._hash = version

    def _start(self) -> Any:
        import aim

        run = aim.Run(self._hash, repo=self._repo, experiment=self._experiment_name, **self._run)
        if self._run_name is not None:
            run.name = self._run_name
        self._hash = run.hash
        return run

    def _opened(self, experiment: Any, config: Mapping[str, Any]) -> None:
        if experiment.get("config") is None:  # a test that continues a fit's run keeps the fit's config
            experiment["config"] = dict(config)

    def _write(self, experiment: Any, row: Row) -> None:
        for name, value in row.values.items():
            experiment.track(value, name=name, step=row.step, epoch=row.epoch)

    def _close(self, experiment: Any, failed: bool) -> None:
        experiment.close()
