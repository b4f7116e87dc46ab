"""The launcher's eye on its workers: notices each end, and lets none outlive a failed peer for long."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from stratagem.launch.exchange import Exchange, Failure
from stratagem.launch.guard import is_alive
from stratagem.launch.worker import LINGER_S

GRACE_S = 2.0
"""How long the peers of a failed worker may take to end by themselves."""

_INTERVAL_S = 0.05
_LAST_WAIT_S = 2.0


@dataclass
class _Worker:
    attempt: int
    rank: int
    pid: int
    handle: int | None
    """A pidfd, so that no other process of the same id is ever meant; None where there are none."""
    ended: float | None = None
    """When its end was noticed, in seconds since the epoch."""


class Supervision:
    """Watches the workers of one launch from a thread, as a context; on leaving it none is left.

    The elastic agent waits half a minute for a worker that is stuck in a collective to obey
    SIGTERM. This ends it by SIGKILL instead, a little after its peer failed.

    Args:
        exchange: where the workers note their starts and ends.
        is_ending: tells whether a signal has come that ends the launch. An agent that gives the workers
            no less than half a minute then needs it.
    """

    def __init__(self, exchange: Exchange, is_ending: Callable[[], bool] = lambda: False) -> None:
        self._exchange = exchange
        self._is_ending = is_ending
        self._signalled: float | None = None
        self._workers: dict[int, _Worker] = {}
        self._trouble: dict[int, float] = {}
        """When each failing attempt began to fail, by this clock's seconds since the epoch."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratagem-supervision", daemon=True)

    def __enter__(self) -> Supervision:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exchange.put("closing", b"")
        self._end_all()
        self._stop.set()
        self._thread.join()
        for worker in self._workers.values():
            if worker.handle is not None:
                os.close(worker.handle)

    def first_failure(self, exit_codes: dict[int, int]) -> Failure:
        """Return what failed first in the last attempt.

        Args:
            exit_codes: what is known of processes that ended badly, by rank; negative for a signal.
        """
        self._look()
        with self._lock:
            attempt = max((worker.attempt for worker in self._workers.values()), default=0)
            ends = {w.rank: w.ended for w in self._workers.values() if w.attempt == attempt}
        recorded = {failure.rank: failure for failure in self._exchange.failures(attempt)}
        # A worker that failed by an exception ends only after its linger: compare the ends.
        found = [(failure.time + LINGER_S, failure) for failure in recorded.values()]
        for rank, code in exit_codes.items():
            if rank not in recorded:
                ended = ends.get(rank) or time.time()
                found.append((ended, _unexplained(rank, attempt, code, ended, started=rank in ends)))
        return min(found, key=lambda pair: pair[0])[1]

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            marks = self._exchange.marks()
            for mark in marks:
                if mark.event == "started" and mark.pid not in self._workers:
                    self._workers[mark.pid] = _worker(mark.attempt, mark.rank, mark.pid)
            now = time.time()
            if self._is_ending() and self._signalled is None:
                self._signalled = now
            finished = {mark.pid for mark in marks if mark.event == "done"}
            for worker in self._workers.values():
                if worker.ended is None and _has_ended(worker):
                    worker.ended = now
                if worker.ended is not None and worker.pid not in finished:
                    self._trouble.setdefault(worker.attempt, now)
            for mark in marks:
                if mark.event == "failed":
                    self._trouble.setdefault(mark.attempt, now)
            for worker in self._workers.values():
                if now - self._trouble.get(worker.attempt, self._signalled or now) > GRACE_S:
                    _kill(worker)

    def _end_all(self) -> None:
        self._look()
        deadline = time.monotonic() + _LAST_WAIT_S
        for worker in self._workers.values():
            _kill(worker)
        for worker in self._workers.values():
            while worker.handle is not None and not _has_ended(worker) and time.monotonic() < deadline:
                time.sleep(0.01)


def _worker(attempt: int, rank: int, pid: int) -> _Worker:
    try:
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return _Worker(attempt, rank, pid, None, ended=time.time())
    except OSError:
        handle = None
    return _Worker(attempt, rank, pid, handle)


def _has_ended(worker: _Worker) -> bool:
    if worker.ended is not None:
        return True
    if worker.handle is None:
        return not is_alive(worker.pid)
    ready = select.poll()
    ready.register(worker.handle, select.POLLIN)
    return bool(ready.poll(0))


def _kill(worker: _Worker) -> None:
    if worker.ended is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        if worker.handle is not None and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(worker.handle, signal.SIGKILL)
        else:
            os.kill(worker.pid, signal.SIGKILL)


def _unexplained(rank: int, attempt: int, code: int, ended: float, *, started: bool) -> Failure:
    """Describe a worker that left no record: a signal or `os._exit` ended it."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        line = f"was ended by {names.get(-code, f'signal {-code}')}"
    elif started:
        line = f"exited with code {code} and no exception"
    else:
        line = "ended before it could begin"
    return Failure(rank, attempt, socket.gethostname(), ended, line, traceback="", exit_code=1)
