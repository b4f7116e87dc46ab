"""Keeps gloo's reports of its connections off the terminal."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

STDOUT = 1
SILENT_SINCE = (2, 13)
"""The oldest version of torch known not to report. From it on, nothing is redirected."""

_REPORT = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. [^\n]*is : \d+\n")


class _Diversion:
    """Redirects standard output's file descriptor to a file while a thread connects.

    Several threads may connect at the same time and wait for threads of other ranks. So the first one redirects,
    the last one restores, and no thread holds the lock in between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._kept: tuple[int, IO[bytes]] | None = None

    def begin(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            try:
                own = os.dup(STDOUT)
            except OSError:  # standard output is closed, so nothing is seen anyway
                return
            # A pipe would need a reader, and /dev/null would lose what other threads print.
            file = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
            self._kept = own, file
            os.dup2(file.fileno(), STDOUT)

    def end(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside or self._kept is None:
                return
            (own, file), self._kept = self._kept, None
            os.dup2(own, STDOUT)
            os.close(own)
        with file:
            file.seek(0)
            others = _REPORT.sub(b"", file.read())
        while others:
            others = others[os.write(STDOUT, others) :]


_DIVERSION = _Diversion()


@contextmanager
def quiet_connecting() -> Iterator[None]:
    """Hide gloo's report of its peers while a `torch.distributed` group is opened.

    In some versions of torch, gloo prints its peers to standard output, for each group and rank. Output of other
    threads appears afterwards, and so does a report of missing peers.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= SILENT_SINCE:
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()  # print earlier output directly
    _DIVERSION.begin()
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
        _DIVERSION.end()
