"""`TrackioLogger`: sends metrics to trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem_trainer.loggers.base import Row
from stratagem_trainer.loggers.library import LibraryLogger


class TrackioLogger(LibraryLogger):
    """A run of trackio, in a folder on this machine, in a Space of Hugging Face, or on a server.

    `experiment` is the `trackio.Run`. The folder is TRACKIO_DIR, which trackio reads when it is first imported.

    Args:
        project: name of the project; `trackio show --project NAME` shows it.
        name: name of the run; None lets trackio choose one.
        space_id: id of a Space to send the metrics to.
        server_url: URL of a trackio server to send the metrics to.
        resume: "never", "allow" or "must": whether a fit continues a run of the same name.
        prefix: put before the names of metrics, joined by "-".
        init: other arguments of `trackio.init`.

    Raises:
        UsageError: the package trackio isn't installed.
    """

    library = package = "trackio"

    def __init__(
        self,
        project: str = "stratagem",
        name: str | None = None,
        space_id: str | None = None,
        server_url: str | None = None,
        resume: str = "never",
        prefix: str = "",
        **init: Any,
    ) -> None:
        super().__init__(prefix)
        self._project, self._run_name, self._resume = project, name, resume
        self._init = {"embed": False, "space_id": space_id, "server_url": server_url, **init}
        self._config: dict[str, Any] = {}

    @property
    def name(self) -> str | None:
        """Name of the project."""
        return self._project

    @property
    def version(self) -> str | None:
        """Name of the run; None before the run starts, unless it was given."""
        return self._run_name

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        if not self.is_muted:
            self._configure(self.experiment, {"hparams": dict(params)})

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "config": self._config}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._config = state["config"]

    def _go_on(self, version: str | None) -> None:
        self._run_name, self._resume = version, "allow"

    def _start(self) -> Any:
        import trackio

        run = trackio.init(project=self._project, name=self._run_name, resume=self._resume, **self._init)
        # Otherwise a continued run would have only the config of its last part.
        run.config.update(self._config)
        self._go_on(run.name)
        return run

    def _opened(self, experiment: Any, config: Mapping[str, Any]) -> None:
        self._configure(experiment, config)

    def _configure(self, experiment: Any, values: Mapping[str, Any]) -> None:
        """Add values to the config; those of the run's first part win. trackio sends them with the next row."""
        self._config = {**values, **self._config}
        experiment.config.update(self._config)

    def _write(self, experiment: Any, row: Row) -> None:
        experiment.log({**row.values, "epoch": row.epoch}, step=row.step)

    def _close(self, experiment: Any, failed: bool) -> None:
        import trackio

        trackio.finish()  # `experiment.finish()` alone would run again at the end of the process
