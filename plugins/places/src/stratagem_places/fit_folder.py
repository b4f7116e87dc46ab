"""`FitFolder`: what the folder of a fit on this machine says of it."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stratagem.errors import ConfigError
from stratagem_places.reading import KeptOutput

_CONFIG, _METRICS, _LOCK, _CHECKPOINTS = "config.yaml", "metrics.csv", ".lock", "checkpoints"
_POSITION = ("step", "epoch")


@dataclass(frozen=True)
class FitFolder:
    """A fit's folder, as its checkpoints, metrics.csv and config.yaml are now.

    Args:
        path: of the folder.
    """

    path: str

    @staticmethod
    def is_one(path: str) -> bool:
        """Whether a fit has left something in a folder."""
        return any(os.path.exists(os.path.join(path, name)) for name in (_CONFIG, _METRICS, _CHECKPOINTS))

    def output(self) -> KeptOutput:
        """Return where the fit kept what its workers printed.

        Raises:
            ConfigError: it kept nothing, or its config.yaml isn't YAML.
        """
        folder = self.settings().get("log_dir")
        if folder is None or not os.path.isdir(folder):
            where = "" if folder is None else f" ({folder!r} isn't there from this folder)"
            raise ConfigError(
                f"{self.path} has no output{where}: a fit prints to its terminal, and keeps what its workers print "
                "with --log-dir FOLDER"
            )
        return KeptOutput(self.path, "", folder)

    @property
    def state(self) -> str:
        """ "running", "killed" where it ended without a word, or "over"."""
        lock = os.path.join(self.path, _LOCK)
        if not os.path.exists(lock):
            return "over"
        return "running" if _is_held(lock) else "killed"

    def metrics(self) -> dict[str, float]:
        """Return the latest value of each metric in metrics.csv, with "step" and "epoch" first.

        Raises:
            ConfigError: the file isn't what a fit writes.
        """
        path = Path(self.path, _METRICS)
        latest: dict[str, float] = {}
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    latest.update({name: float(value) for name, value in row.items() if name and value})
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, csv.Error) as error:
            raise ConfigError(f"{path} can't be read as metrics of a fit: {error}") from error
        return latest

    def settings(self) -> dict[str, Any]:
        """Return config.yaml, flat: "trainer.max_epochs" → its value.

        Raises:
            ConfigError: the file isn't YAML.
        """
        import yaml
        from stratagem_cli.yaml_text import read_yaml_file

        path = os.path.join(self.path, _CONFIG)
        if not os.path.exists(path):
            return {}
        try:
            return dict(_flat(read_yaml_file(path)))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} can't be read as the configuration of a fit: {error}") from error

    @property
    def changed_at(self) -> str:
        """When something was written last, as an ISO time."""
        paths = [self.path, *(os.path.join(self.path, name) for name in (_METRICS, _CHECKPOINTS))]
        latest = max(os.stat(path).st_mtime for path in paths if os.path.exists(path))
        return datetime.fromtimestamp(latest, timezone.utc).isoformat(timespec="seconds")


def compared(folders: Mapping[str, FitFolder]) -> list[list[str]]:
    """Return rows of a table: settings that differ, then metrics, a column for each folder.

    Args:
        folders: name → folder.
    """
    rows = []
    settings = [folder.settings() for folder in folders.values()]
    for name in dict.fromkeys(key for each in settings for key in each):
        values = [each.get(name, "") for each in settings]
        if any(value != values[0] for value in values):
            rows.append([name, *map(str, values)])
    metrics = [folder.metrics() for folder in folders.values()]
    for name in dict.fromkeys(key for each in metrics for key in each):
        rows.append([name, *(f"{each[name]:g}" if name in each else "" for each in metrics)])
    return rows


def in_words(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line, those of a validation first."""
    names = sorted((name for name in metrics if name not in _POSITION), key=lambda name: "val" not in name)
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in names[:3])


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        pair
        for key, inner in value.items()
        for pair in _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    ]


def _is_held(lock: str) -> bool:
    """Whether the process that made a run's lock still lives; True where that can't be found out."""
    try:
        import fcntl

        with open(lock, "rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (ImportError, OSError):
        return True
    return False
