"""Reading what a run prints from the files in its folder."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Iterator
from glob import escape, glob
from typing import NamedTuple, Protocol

from stratagem.errors import ConfigError

_EVERY_S = 0.5


class Output(Protocol):
    """Where files of a run's output are: a `PlacedRun`, or what a fit kept."""

    @property
    def name(self) -> str:
        """How messages call the run."""

    @property
    def output_dir(self) -> str:
        """Has a file per node."""

    @property
    def log_dir(self) -> str:
        """Has files of each rank, as --log-dir writes them."""


class KeptOutput(NamedTuple):
    """What a fit on this machine kept with --log-dir."""

    name: str
    output_dir: str
    log_dir: str


def run_output(
    run: Output, rank: int | None, is_over: Callable[[], bool] | None, ask_every_s: float = 5.0
) -> Iterator[str]:
    """Yield what is in a run's files, and what comes.

    Args:
        run: whose `output_dir` and `log_dir` this machine sees.
        rank: only this rank's.
        is_over: returns whether nothing more comes; None not to wait for more.
        ask_every_s: how often to ask it.

    Raises:
        ConfigError: there is nothing of this rank.
    """
    readers: dict[str, _Tail] = {}
    ask_at = 0.0
    while True:
        over = is_over is None
        if is_over is not None and time.monotonic() >= ask_at:
            over = is_over()  # before reading: what was written by then is read
            ask_at = time.monotonic() + ask_every_s
        for path in _files(run, rank):
            yield from readers.setdefault(path, _Tail(path)).read()
        if over:
            break
        time.sleep(_EVERY_S)
    if rank is not None and not readers:
        known = sorted({int(os.path.basename(os.path.dirname(path))) for path in _rank_files(run, "*")})
        there = f"there are ranks {', '.join(map(str, known))}" if known else "there is nothing of any rank"
        raise ConfigError(f"{run.name} has no output of rank {rank}; {there}")


class _Tail:
    """What was added to a file since it was last read."""

    def __init__(self, path: str) -> None:
        self._path, self._offset = path, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> Iterator[str]:
        with open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._offset = 0  # workers that are started again begin their files again
            file.seek(self._offset)
            while content := file.read(2**16):
                self._offset += len(content)
                text = self._decoder.decode(content)
                if text:
                    yield text


def _files(run: Output, rank: int | None) -> list[str]:
    nodes = sorted(glob(os.path.join(escape(run.output_dir), "*.txt")))
    if rank is None:
        return nodes
    own = _rank_files(run, str(rank))
    # A run of one process, which needs no worker.
    return own or (nodes if rank == 0 and not os.path.isdir(run.log_dir) else [])


def _rank_files(run: Output, rank: str) -> list[str]:
    found = glob(os.path.join(escape(run.log_dir), "attempt_*", rank, "*.log"))
    return sorted(found, key=lambda path: (_attempt(path), os.path.basename(path) != "stdout.log"))


def _attempt(path: str) -> int:
    number = os.path.basename(os.path.dirname(os.path.dirname(path))).removeprefix("attempt_")
    return int(number) if number.isdecimal() else -1
