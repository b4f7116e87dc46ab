"""`PlacedRun`: a run that was submitted somewhere, as its folder tells."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stratagem.errors import ConfigError

RECORD = os.path.join("place", "record.json")
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class PlacedRun:
    """The record of a submitted run; JSON in its folder."""

    run_dir: str
    """Absolute; where the record was found."""
    place: str
    """The component's name, as "slurm"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the place's constructor."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """What `Place.submit` returned."""
    command: tuple[str, ...] = ()
    """As it was typed, from the command's name on."""
    submitted_at: str = ""
    """In ISO 8601, with the time zone."""

    @property
    def name(self) -> str:
        """Its folder's."""
        return os.path.basename(self.run_dir)

    @property
    def output_dir(self) -> str:
        """As of `PlaceRequest`."""
        return os.path.join(self.run_dir, "place", "output")

    @property
    def log_dir(self) -> str:
        """As of `PlaceRequest`."""
        return os.path.join(self.run_dir, "place", "logs")

    def write(self) -> None:
        """Write the record, whole or not at all."""
        path = os.path.join(self.run_dir, RECORD)
        content = {"format": FORMAT, **asdict(self)}
        del content["run_dir"]
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")
        os.replace(f"{path}.new", path)

    @classmethod
    def read(cls, run_dir: str) -> PlacedRun:
        """Read a run's record.

        Raises:
            ConfigError: there is none, or it is of another version.
        """
        path = os.path.join(run_dir, RECORD)
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            if content.pop("format") != FORMAT:
                raise ConfigError(f"{path} is of another version of stratagem-places: upgrade it")
            content["command"] = tuple(content["command"])
            return cls(run_dir=os.path.abspath(run_dir), **content)
        except FileNotFoundError:
            raise ConfigError(f"{run_dir!r} is no run that was submitted: there is no {path}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} can't be read: {error}") from error
