"""`CometLogger`: sends metrics to Comet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from glob import glob
from typing import Any

from stratagem_trainer.loggers.base import Row, flattened
from stratagem_trainer.loggers.library import LibraryLogger

from stratagem.sdk.selection import path_text


class CometLogger(LibraryLogger):
    """An experiment of Comet. `experiment` is Comet's own object.

    Args:
        api_key: as in comet_ml; None is COMET_API_KEY, or the key in Comet's configuration.
        workspace: as in comet_ml.
        project: name of the project.
        experiment_key: key of an experiment to continue.
        mode: "create", "get" or "get_or_create".
        online: False writes everything to files, for `comet upload`.
        prefix: put before the names of metrics, joined by "-".
        name: name of the experiment.
        offline_directory: folder of the files that `online=False` writes; None is comet/ in the run folder. Later
          stages
            of the same experiment write to subfolders: upload those after the first one.
        config: other arguments of `comet_ml.ExperimentConfig`.

    Raises:
        UsageError: the package comet_ml isn't installed.
    """

    library = package = "comet_ml"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        workspace: str | None = None,
        project: str | None = None,
        experiment_key: str | None = None,
        mode: str | None = None,
        online: bool | None = None,
        prefix: str | None = None,
        name: str | None = None,
        offline_directory: str | os.PathLike[str] | None = None,
        **config: Any,
    ) -> None:
        super().__init__(prefix or "")
        self._selection = {"api_key": api_key, "workspace": workspace, "project": project, "mode": mode}
        self._online, self._key, self._experiment_name = online, experiment_key, name
        self._offline_directory = (
            None if offline_directory is None else path_text("offline_directory", offline_directory)
        )
        self._config = config

    @property
    def name(self) -> str | None:
        """Name of the project."""
        return self._selection["project"]

    @property
    def version(self) -> str | None:
        """Key of the experiment; None before it starts, unless it was given."""
        return self._key

    @property
    def save_dir(self) -> str | None:
        return self._offline_directory

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self.experiment.log_parameters(flattened(params))

    def _go_on(self, version: str | None) -> None:
        self._key, self._selection["mode"] = version, "get"

    def _start(self) -> Any:
        import comet_ml

        folder = self._offline_directory or os.path.join(self.run_dir, "comet")
        if self._online is False:
            # Comet names an archive by the key and by a number from Python's generator: with the same seed it would
            # overwrite the earlier archive.
            while self._key is not None and glob(os.path.join(folder, f"{self._key}*")):
                folder = os.path.join(folder, "later")
            os.makedirs(folder, exist_ok=True)
        config = comet_ml.ExperimentConfig(
            offline_directory=folder, name=self._experiment_name, **self._config
        )
        given = {name: value for name, value in self._selection.items() if value is not None}
        experiment = comet_ml.start(
            experiment_key=self._key, online=self._online, experiment_config=config, **given
        )
        self._key = experiment.get_key()
        return experiment

    def _opened(self, experiment: Any, config: Mapping[str, Any]) -> None:
        experiment.log_parameters(flattened(config))

    def _write(self, experiment: Any, row: Row) -> None:
        experiment.log_metrics(dict(row.values), step=row.step, epoch=row.epoch)

    def _close(self, experiment: Any, failed: bool) -> None:
        experiment.end()
