"""Files that a rank writes for its watcher, in one folder."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from dataclasses import dataclass

_NOTE = "heartbeat"


@dataclass(frozen=True)
class RankFiles:
    """Paths of one rank's files."""

    folder: str
    rank: int
    pid: int

    @property
    def note(self) -> str:
        """File that describes the rank, with its heartbeat timeout."""
        return self._path(_NOTE)

    @property
    def request(self) -> str:
        """File that exists once the rank was asked to write its collectives."""
        return self._path("hang")

    @property
    def beat(self) -> str:
        """File of the heartbeat counter, 8 bytes."""
        return self._path("beat")

    @property
    def stacks(self) -> str:
        """File of the stacks that faulthandler writes."""
        return self._path("stacks")

    @property
    def collectives(self) -> str:
        """File of torch's flight recorder."""
        return self._path("collectives")

    @property
    def reported(self) -> str:
        """File that exists once this rank has reported the hang for all ranks."""
        return self._path("reported")

    def _path(self, what: str) -> str:
        return os.path.join(self.folder, f"{what}.{self.rank}.{self.pid}")


@dataclass(frozen=True)
class Beat:
    """A rank's heartbeat, as read by its watcher."""

    files: RankFiles
    host: str
    timeout_s: float
    report_dir: str
    world_size: int

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.files.rank

    def count(self) -> int:
        """Number of beats; 0 if unknown."""
        with contextlib.suppress(OSError, struct.error), open(self.files.beat, "rb") as file:
            return int(struct.unpack("<Q", file.read(8))[0])
        return 0


def beats_in(folder: str) -> list[Beat]:
    """Return the heartbeats of all ranks in a folder, sorted by rank."""
    beats = []
    for name in os.listdir(folder):
        parts = name.split(".")
        if parts[0] != _NOTE or len(parts) != 3:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                note = json.load(file)
            files = RankFiles(folder, note["rank"], note["pid"])
            beats.append(Beat(files, note["host"], note["timeout_s"], note["report_dir"], note["world_size"]))
    return sorted(beats, key=lambda beat: (beat.rank, beat.files.pid))


def write_whole(path: str, content: bytes | str) -> None:
    """Write a file atomically; threads may write it at the same time."""
    unfinished = f"{path}.{threading.get_ident()}.unfinished"
    with open(unfinished, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.replace(unfinished, path)
