"""Keep what gloo says while it connects off the terminal."""

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
"""The oldest torch known not to report; nothing is redirected from it on."""

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
            except OSError:  # closed, so nothing is seen anyway
                return
            # Not to a pipe, which would want a reader; nor to nowhere, as other threads may be printing.
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
    """Wrap what opens a `torch.distributed` group: gloo's report of its peers isn't printed.

    In some versions of torch, gloo prints its peers to standard output, for each group and rank. What other
    threads print meanwhile appears afterwards, and so does a report that peers are missing.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= SILENT_SINCE:
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()  # what was printed before needs no detour
    _DIVERSION.begin()
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
        _DIVERSION.end()
