"""`PlacedRun`: a run that was submitted to a place, read from its folder."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stratagem.errors import ConfigError, short

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
    """Arguments of the place's constructor."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """What `Place.submit` returned."""
    command: tuple[str, ...] = ()
    """The command as it was typed, from the command's name on."""
    submitted_at: str = ""
    """In ISO 8601, with the time zone."""

    @property
    def name(self) -> str:
        """Its folder's."""
        return os.path.basename(self.run_dir)

    @property
    def output_dir(self) -> str:
        """See `PlaceRequest.output_dir`."""
        return os.path.join(self.run_dir, "place", "output")

    @property
    def log_dir(self) -> str:
        """See `PlaceRequest.log_dir`."""
        return os.path.join(self.run_dir, "place", "logs")

    def job_text(self, name: str, pattern: str, allowed: str) -> str:
        """Return a text of `job` that may become an argument of a program.

        Args:
            name: of the field.
            pattern: what it must match whole.
            allowed: what that is, in words.

        Raises:
            ConfigError: it is missing, or something else.
        """
        value = self.job.get(name)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise self._damaged(f"job has {name}={short(value)}, which must be {allowed}")
        return value

    def job_number(self, name: str, min: int = 1) -> int:
        """Return a number of `job`.

        Raises:
            ConfigError: it is missing, or something else.
        """
        value = self.job.get(name)
        if type(value) is not int or value < min:
            raise self._damaged(f"job has {name}={short(value)}, which must be a number from {min}")
        return value

    def write(self) -> None:
        """Write the record, whole or not at all; only its owner may change it."""
        path = os.path.join(self.run_dir, RECORD)
        content = {"format": FORMAT, **asdict(self)}
        del content["run_dir"]
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            os.chmod(file.name, 0o644 & stat.S_IMODE(os.stat(file.name).st_mode))
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")
        os.replace(f"{path}.new", path)

    @classmethod
    def read(cls, run_dir: str) -> PlacedRun:
        """Read a run's record.

        What it says decides which programs are asked and which process gets a signal. So the record must belong to
        the user who reads it.

        Raises:
            ConfigError: there is none, it is another user's, it is damaged, or it is of another version.
        """
        path = os.path.join(run_dir, RECORD)
        try:
            content = json.loads(_own_text(run_dir, path))
        except FileNotFoundError:
            raise ConfigError(f"{run_dir!r} is no run that was submitted: there is no {path}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} can't be read: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} is damaged: it must hold one JSON object")
        if content.pop("format", None) != FORMAT:
            raise ConfigError(f"{path} is of another version of stratagem-places: upgrade it")
        return cls(run_dir=os.path.abspath(run_dir), **_checked(path, content))

    def _damaged(self, why: str) -> ConfigError:
        return ConfigError(f"{os.path.join(self.run_dir, RECORD)} is damaged: {why}")


def _own_text(run_dir: str, path: str) -> str:
    """Return what is in the record, a regular file of this user in folders of this user.

    Raises:
        ConfigError: it isn't.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(handle, encoding="utf-8") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path} is no regular file")
        if hasattr(os, "geteuid"):
            for what, owner in (
                (path, found.st_uid),
                (os.path.dirname(path), os.lstat(os.path.dirname(path)).st_uid),
                (run_dir, os.stat(run_dir).st_uid),
            ):
                if owner != os.geteuid():
                    raise ConfigError(
                        f"{what} belongs to user {owner}, and you are user {os.geteuid()}: only the user who "
                        "submitted a run can list, follow or stop it"
                    )
            if found.st_mode & stat.S_IWOTH:
                raise ConfigError(
                    f"{path} can be changed by every user: if it says what you submitted, run chmod o-w on it"
                )
        return file.read()


def _checked(path: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return the record's fields, each of the type that it must have.

    Raises:
        ConfigError: one is missing, unknown or something else.
    """
    known = {"place": str, "options": dict, "job": dict, "command": list, "submitted_at": str}
    for name, kind in known.items():
        if not isinstance(content.get(name), kind):
            allowed = {str: "a text", dict: "an object", list: "a list of texts"}[kind]
            raise ConfigError(
                f"{path} is damaged: {name} is {short(content.get(name))}, and must be {allowed}"
            )
    unexpected = sorted(set(content) - set(known))
    if unexpected:
        raise ConfigError(f"{path} is damaged: unexpected field {short(unexpected[0])}")
    if not all(isinstance(word, str) for word in content["command"]):
        raise ConfigError(f"{path} is damaged: command must be a list of texts")
    for text in (content["place"], content["submitted_at"]):
        if not text.isprintable():  # it is printed on a terminal
            raise ConfigError(f"{path} is damaged: {short(text)} has characters that can't be printed")
    return {**content, "command": tuple(content["command"])}
