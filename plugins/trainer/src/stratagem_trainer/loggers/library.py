"""`LibraryLogger`: base class of loggers that use a library with an object for each run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from stratagem.errors import UsageError
from stratagem_trainer.loggers.base import Logger, NoExperiment, Row


class LibraryLogger(Logger):
    """Starts the library's run when `experiment` is first read, or when a fit opens the logger.

    Args:
        prefix: for the names of metrics, joined by "-".

    Raises:
        UsageError: the library isn't installed.
    """

    library = ""
    """Name of the module to import."""
    package = ""
    """Name of the package to install."""

    def __init__(self, prefix: str = "") -> None:
        owner = type(self).__name__
        if not _is_installed(self.library):
            raise UsageError(f"{owner} needs the package {self.package}: pip install {self.package}")
        self.prefix = prefix
        self.run_dir = "."
        """The run's folder, after a fit has opened the logger."""
        self._experiment: Any = None

    @property
    def experiment(self) -> Any:
        if self.is_muted:
            return NoExperiment()
        if self._experiment is None:
            self._experiment = self._start()
        return self._experiment

    def open(self, run_dir: str, config: Mapping[str, Any], resumed_step: int | None = None) -> None:
        self.run_dir = run_dir
        self._opened(self.experiment, config)

    def write(self, rows: Sequence[Row]) -> None:
        experiment = self.experiment
        for row in rows:
            values = (
                {f"{self.prefix}-{name}": v for name, v in row.values.items()} if self.prefix else row.values
            )
            self._write(experiment, Row(row.step, row.epoch, values))

    def close(self, failed: bool = False) -> None:
        experiment, self._experiment = self._experiment, None
        if experiment is not None:
            self._close(experiment, failed)

    def state_dict(self) -> dict[str, Any]:
        return {"run_dir": self.run_dir, "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.run_dir = state["run_dir"]
        self._go_on(state["version"])

    @abstractmethod
    def _go_on(self, version: Any) -> None:
        """Continue the run of `version`."""

    @abstractmethod
    def _start(self) -> Any:
        """Start a run, and return the library's object for it."""

    def _opened(self, experiment: Any, config: Mapping[str, Any]) -> None:
        """Log the run's config."""

    @abstractmethod
    def _write(self, experiment: Any, row: Row) -> None:
        """Log a row."""

    @abstractmethod
    def _close(self, experiment: Any, failed: bool) -> None:
        """End the run."""

    def __getstate__(self) -> dict[str, Any]:
        # The library's object belongs to its process.
        return {**self.__dict__, "_experiment": None}


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except (ImportError, ValueError):
        return False
