"""Messages between a launcher and its workers, as files in a directory that only this user can read."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ROUND = "round"
"""File with the number of the round for which this node's workers are started, if nodes agree on rounds."""


LOG_DIR_VARIABLE = "STRATAGEM_LOG_DIR"
"""Variable with the folder for workers' output, for a run that doesn't set one."""


@dataclass(frozen=True)
class Job:
    """How each worker prepares itself before it runs the task. Reading it doesn't import torch."""

    launcher_pid: int
    environ: dict[str, str]
    """The whole environment of the launching process, with the plan's variables."""
    default_start_method: str | None
    """The launching process's start method of multiprocessing; None for Python's default."""
    has_store: bool = False
    """Whether the workers' store is a file in the folder, instead of a server that listens."""
    log_dir: str | None = None
    """Folder to redirect the output to; None writes to the console."""
    preparation: dict[str, Any] = field(default_factory=dict)
    """For a fresh interpreter: the argument of `multiprocessing.spawn.prepare`, which imports `__main__`."""


def log_file(log_dir: str, attempt: int, rank: int, stream: str) -> str:
    """Return the path of a rank's log file for `stream`, "stdout" or "stderr", in one attempt."""
    return os.path.join(log_dir, f"attempt_{attempt}", str(rank), f"{stream}.log")


@dataclass(frozen=True)
class Failure:
    """The exception that ended a worker."""

    rank: int
    attempt: int
    host: str
    time: float
    """Seconds since the epoch."""
    line: str
    """The error as one line, such as "ValueError: negative size"."""
    traceback: str
    exit_code: int = 1
    usage: bool = False
    """Whether it was a `UsageError` or a `SealError`, whose message explains it without a traceback."""
    exception: bytes | None = None
    """The pickled exception; None if it can't be pickled."""
    raised: bool = True
    """False if the worker ended without an exception; `line` then says how it ended."""
    is_whole: bool = False
    """Whether it was diagnosed from the evidence of all ranks; `line` is then the whole message."""


@dataclass(frozen=True)
class WorkerEvent:
    """An event in the life of a worker."""

    event: str
    """started, done, failed, left (by `sys.exit(0)`) or exited (by `os._exit(0)`)."""
    attempt: int
    rank: int
    pid: int
    time: float
    """Seconds since the epoch."""


@dataclass(frozen=True)
class LaunchDir:
    """The directory of a launch. Files are written atomically: each appears complete, under its final name."""

    path: str

    @classmethod
    def create(cls) -> LaunchDir:
        """Make a new directory, open to this user alone."""
        return cls(tempfile.mkdtemp(prefix="stratagem-launch-"))

    def remove(self) -> None:
        """Delete the directory and all files in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def put(self, name: str, content: bytes, when: float | None = None) -> None:
        """Write a file in one step, dated now or `when`, in seconds since the epoch."""
        target = os.path.join(self.path, name)
        unfinished = f"{target}.{os.getpid()}.unfinished"
        with open(unfinished, "wb") as file:
            file.write(content)
        if when is not None:
            os.utime(unfinished, (when, when))
        os.replace(unfinished, target)

    def get(self, name: str) -> bytes:
        """Read a file.

        Raises:
            FileNotFoundError: the file doesn't exist.
        """
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def has(self, name: str) -> bool:
        """Return whether the file exists."""
        return os.path.exists(os.path.join(self.path, name))

    def mark(self, event: str, attempt: int, rank: int, when: float | None = None) -> None:
        """Record an event of the calling worker, with the time `when`, by default now."""
        self.put(f"mark.{event}.{attempt}.{rank}.{os.getpid()}", b"", when)

    def marks(self) -> list[WorkerEvent]:
        """Return all events noted so far."""
        marks = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                parts = entry.name.split(".")
                if parts[0] == "mark" and len(parts) == 5:
                    made = entry.stat().st_mtime
                    marks.append(WorkerEvent(parts[1], int(parts[2]), int(parts[3]), int(parts[4]), made))
        return marks

    def put_failure(self, failure: Failure) -> None:
        """Record why the calling worker failed."""
        self.put(f"failure.{failure.attempt}.{failure.rank}", pickle.dumps(failure))
        self.mark("failed", failure.attempt, failure.rank)

    def put_preempted(self, preempted: BaseException, attempt: int, rank: int) -> None:
        """Record that the calling worker has saved and ends."""
        self.put(f"preempted.{attempt}.{rank}", pickle.dumps(preempted))

    def preempted(self, attempt: int, ranks: Sequence[int]) -> Any:
        """Return the record of `put_preempted` of the first of these ranks that has one; None if none has."""
        for rank in ranks:
            if self.has(f"preempted.{attempt}.{rank}"):
                return pickle.loads(self.get(f"preempted.{attempt}.{rank}"))
        return None

    def failures(self, attempt: int) -> list[Failure]:
        """Return the recorded failures of one attempt."""
        prefix = f"failure.{attempt}."
        names = [name for name in os.listdir(self.path) if name.startswith(prefix)]
        return [pickle.loads(self.get(name)) for name in names if not name.endswith(".unfinished")]
