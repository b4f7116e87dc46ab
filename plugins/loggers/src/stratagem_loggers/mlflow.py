"""`MLFlowLogger`: sends metrics to MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from stratagem_trainer.loggers.base import Row, flattened
from stratagem_trainer.loggers.library import LibraryLogger

from stratagem.errors import ConfigError
from stratagem.sdk.selection import path_text

_MAX_PARAMS = 100
"""Maximum number of parameters in one request."""


class MLFlowLogger(LibraryLogger):
    """A run of MLflow, in a folder or on a server. `experiment` is the `mlflow.tracking.MlflowClient`.

    Args:
        experiment_name: name of the experiment.
        run_name: name of the run.
        tracking_uri: URI of the server or store. None is MLFLOW_TRACKING_URI, or a folder if that isn't set.
        tags: tags of the run.
        save_dir: that folder; None is mlruns/ in the run folder.
        log_model: must be False: checkpoints are folders, which `experiment.log_artifacts` can log.
        prefix: put before the names of metrics, joined by "-".
        artifact_location: used for a new experiment.
        run_id: id of a run to continue.
        synchronous: whether a call waits for the server; None is MLflow's default.

    Raises:
        UsageError: the package mlflow isn't installed. mlflow-skinny is enough.
        ConfigError: `log_model`.
    """

    library, package = "mlflow", "mlflow-skinny"

    def __init__(
        self,
        experiment_name: str = "stratagem",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, Any] | None = None,
        save_dir: str | os.PathLike[str] | None = None,
        log_model: bool = False,
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool | None = None,
    ) -> None:
        super().__init__(prefix)
        if log_model:
            raise ConfigError(
                f"MLFlowLogger got log_model={log_model!r}: checkpoints aren't uploaded automatically; log what you "
                "want of them by logger.experiment.log_artifacts(logger.run_id, path)"
            )
        self._experiment_name, self._run_name = experiment_name, run_name
        self._tracking_uri, self._tags = tracking_uri, dict(tags or {})
        self._save_dir = None if save_dir is None else path_text("save_dir", save_dir)
        self._artifact_location, self._run_id = artifact_location, run_id
        self._how = {} if synchronous is None else {"synchronous": synchronous}

    @property
    def name(self) -> str | None:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str | None:
        """Id of the run; None before the run starts, unless it was given."""
        return self._run_id

    @property
    def run_id(self) -> str | None:
        """Id of the run. Starts the run if needed."""
        return self._run_id if self.experiment is not None else None

    @property
    def save_dir(self) -> str | None:
        return self._save_dir

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        if self.is_muted:
            return
        from mlflow.entities import Param

        client = self.experiment
        flat = [Param(_key(name), str(value)[:500]) for name, value in flattened(params).items()]
        for first in range(0, len(flat), _MAX_PARAMS):
            client.log_batch(self._run_id, params=flat[first : first + _MAX_PARAMS], **self._how)

    def _go_on(self, version: str | None) -> None:
        self._run_id = version

    def _start(self) -> Any:
        from mlflow.tracking import MlflowClient
        from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME

        folder = self._save_dir or os.path.join(self.run_dir, "mlruns")
        uri = self._tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"file:{os.path.abspath(folder)}"
        if uri.startswith("file:"):
            # MLflow 3 stores runs in a folder only if this variable is set.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        client = MlflowClient(uri)
        if self._run_id is None:
            known = client.get_experiment_by_name(self._experiment_name)
            experiment_id = (
                known.experiment_id
                if known is not None
                else client.create_experiment(self._experiment_name, self._artifact_location)
            )
            tags = self._tags if self._run_name is None else {**self._tags, MLFLOW_RUN_NAME: self._run_name}
            self._run_id = client.create_run(experiment_id, tags=tags).info.run_id
        return client

    def _opened(self, experiment: Any, config: Mapping[str, Any]) -> None:
        self.log_hyperparams({name: value for name, value in config.items() if value is not None})

    def _write(self, experiment: Any, row: Row) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        values = {**row.values, "epoch": row.epoch}
        metrics = [Metric(_key(name), float(value), now_ms, row.step) for name, value in values.items()]
        experiment.log_batch(self._run_id, metrics=metrics, **self._how)

    def _close(self, experiment: Any, failed: bool) -> None:
        experiment.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


def _key(name: str) -> str:
    """Replace the characters that MLflow doesn't allow in names."""
    return re.sub(r"[^\w\-. :/]", "_", name)
