"""`Logger`: where a trainer's metrics go. Only rank 0 has live loggers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """Values logged at one point of the run."""

    step: int
    """Completed optimizer steps."""
    epoch: int
    values: Mapping[str, float]


class Logger(ABC):
    """Receives metrics in groups, so that logging every step costs no file access every step."""

    def open(self, run_dir: str, config: Mapping[str, Any], resumed_step: int | None = None) -> None:
        """Start in the run's folder; called once on rank 0 before the first row.

        Args:
            run_dir: an existing folder.
            config: hyperparameters and settings of the run, nested, JSON-able.
            resumed_step: in a fit, the completed optimizer steps that it goes on from, 0 for a fresh one:
                what is there of later steps was left by a killed run and is dropped. None drops nothing.
        """

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Take up what the module's `save_hyperparameters` kept; called after `open`, where there is something.

        Args:
            params: JSON-able, nested; of classes and functions their names.
        """

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Take up rows, in the order in which they were logged."""

    def flush(self) -> None:
        """Bring everything written so far to where a reader finds it."""

    def close(self, failed: bool = False) -> None:
        """Finish; called once, also after an exception."""
