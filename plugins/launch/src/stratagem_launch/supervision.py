"""`Supervision`: notices when workers end, and kills the peers of a failed worker soon after it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from stratagem_launch.guard import is_alive, is_stopped
from stratagem_launch.hangs.watch import HangWatch, say
from stratagem_launch.launch_dir import Failure, LaunchDir, WorkerEvent
from stratagem_launch.preemption import Preempted
from stratagem_launch.stop_signals import StopRequest
from stratagem_launch.worker import LINGER_S
from stratagem_launch.worker_ends import left_early, unexplained, with_what_followed, without_exception

GRACE_S = 2.0
"""How long the peers of a failed worker may take to end before they are killed."""

_INTERVAL_S = 0.05
_LAST_WAIT_S = 2.0


@dataclass
class _Worker:
    attempt: int
    rank: int
    pid: int
    handle: int | None
    """A pidfd, so that a reused process id is never mistaken for the worker; None if the system has none."""
    ended: float | None = None
    """When its end was noticed, in seconds since the epoch."""
    stopped: bool = False
    """Whether a signal had stopped it when its attempt began to fail."""


class Supervision:
    """Watches the workers of one launch from a thread. A context manager, after which no worker is left.

    The elastic agent waits half a minute for a worker that is stuck in a collective to obey
    SIGTERM. This ends it by SIGKILL instead, a little after its peer failed.

    Args:
        launch_dir: where the workers record their starts and ends.
        is_ending: returns whether a signal has come that ends the launch. Needed for agents that give workers at
            least half a minute to obey it.
        stop: whether the workers were asked to save and end. If they can't, this ends the launch.
        tells_hangs: whether to report a hang at once, because the run may continue after it.
    """

    def __init__(
        self,
        launch_dir: LaunchDir,
        is_ending: Callable[[], bool] = lambda: False,
        stop: StopRequest | None = None,
        tells_hangs: bool = False,
    ) -> None:
        self._launch_dir, self._stop_request = launch_dir, stop
        self._is_ending = is_ending
        self._signalled: float | None = None
        self._notified_attempt: int | None = None
        """The attempt that was asked to stop."""
        self._workers: dict[int, _Worker] = {}
        self._hangs, self._tells_hangs = HangWatch(launch_dir.path), tells_hangs
        self._hung: dict[int, Failure] = {}
        """Attempt → the hang that ended it."""
        self._trouble: dict[int, float] = {}
        """When each failed attempt began to fail, in seconds since the epoch."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratagem-supervision", daemon=True)

    def __enter__(self) -> Supervision:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._launch_dir.put("closing", b"")
        self._end_all()
        self._stop.set()
        self._thread.join()
        for worker in self._workers.values():
            if worker.handle is not None:
                os.close(worker.handle)

    def first_failure(
        self, exit_codes: dict[int, int], may_exit: bool = False, attempt: int | None = None
    ) -> Failure:
        """Return the first failure of an attempt: an exception, or a worker that ended or was stopped.

        Args:
            exit_codes: known exit codes of failed processes, by rank; negative for a signal.
            may_exit: as in `Task`.
            attempt: number of the attempt; None for the last one.
        """
        attempt, workers = self._workers_of(attempt)
        if attempt in self._hung:
            return self._hung[attempt]
        failure = self._first_end(exit_codes, may_exit, attempt, workers)
        mismatch = self._hangs.mismatch({worker.pid for worker in workers.values()})
        if mismatch is None or failure.usage:
            return failure
        rank, why = mismatch
        by = f"rank {failure.rank} {'failed: ' * failure.raised}{failure.line}"
        return replace(failure, rank=rank, line=f"{why}; by that {by}", is_whole=True)

    def _first_end(
        self, exit_codes: dict[int, int], may_exit: bool, attempt: int, workers: dict[int, _Worker]
    ) -> Failure:
        marks = self._marks(attempt)
        recorded = {failure.rank: failure for failure in self._launch_dir.failures(attempt)}
        # A worker that failed by an exception ends only after its linger: compare the ends.
        found = [(failure.time + LINGER_S, failure) for failure in recorded.values()]
        for rank, worker in workers.items():
            mark = marks.get(rank)
            if rank in recorded or (mark is not None and mark.event == "done"):
                continue
            if mark is not None and mark.event == "left":
                if not may_exit:
                    found.append((mark.time + LINGER_S, left_early(mark)))
            elif mark is not None:
                found.append((mark.time, left_early(mark)))
            elif worker.ended is not None:
                code = exit_codes.get(rank)
                found.append((worker.ended, unexplained(rank, attempt, code, worker.ended)))
        for rank in exit_codes.keys() - workers.keys() - recorded.keys():
            found.append(
                (time.time(), without_exception(rank, attempt, time.time(), "ended before it could begin"))
            )
        # Of ends that were noticed together, one with an exit code came first: the agent ends the others.
        first = min(found, key=lambda pair: (pair[0], pair[1].rank not in exit_codes))[1]
        if not first.raised and first.rank not in marks and exit_codes.get(first.rank, 0) < 0:
            return first  # the signal explains the end
        still = [rank for rank, worker in workers.items() if worker.stopped]
        if first.raised and still and first.rank not in still:
            first = without_exception(
                still[0], attempt, first.time, "stood still, stopped by a signal such as SIGSTOP"
            )
        gone = [
            str(rank) for rank, mark in marks.items() if mark.event != "exited" and mark.time < first.time
        ]
        if first.raised and gone:
            line = f"{first.line} (by then rank {', '.join(gone)} had left with exit code 0)"
            return replace(first, line=line)
        return with_what_followed(first, recorded)

    def failure_so_far(self) -> Failure | None:
        """Return `first_failure` for a launch that this object ends; None if nothing failed."""
        attempt = self._notified_attempt
        return self.first_failure({}, attempt=attempt) if attempt in self._trouble else None

    def preempted(self) -> Preempted | None:
        """Return the `Preempted` of this node's lowest preempted rank in the last attempt; None if there is none."""
        attempt, workers = self._workers_of()
        preempted: Preempted | None = self._launch_dir.preempted(attempt, sorted(workers))
        return preempted

    def unfinished(self, may_exit: bool = False) -> Failure | None:
        """Return the first worker of the last attempt that exited with code 0 before its task was done.

        Call it after all workers have ended.

        Args:
            may_exit: as in `Task`.
        """
        attempt, workers = self._workers_of()
        marks = self._marks(attempt)
        left = [mark for mark in marks.values() if mark.event == "left"]
        if left and len(left) < len(workers) and not may_exit:
            return left_early(min(left, key=lambda mark: mark.time))
        for rank, worker in workers.items():
            if rank not in marks:
                return unexplained(rank, attempt, 0, worker.ended or time.time())
        return None

    def _workers_of(self, attempt: int | None = None) -> tuple[int, dict[int, _Worker]]:
        """Return the number of an attempt, by default of the last one, and its workers by rank."""
        self._look()
        with self._lock:
            attempt = self._latest() if attempt is None else attempt
            return attempt, {w.rank: w for w in self._workers.values() if w.attempt == attempt}

    def _marks(self, attempt: int) -> dict[int, WorkerEvent]:
        """Return the events by which workers of an attempt recorded their end, by rank."""
        ends = ("done", "left", "exited")
        marks = self._launch_dir.marks()
        return {mark.rank: mark for mark in marks if mark.event in ends and mark.attempt == attempt}

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._look()
            self._end_hang()

    def _end_hang(self) -> None:
        """End an attempt in which a rank's heartbeat has timed out."""
        with self._lock:
            latest = self._latest()
            alive = {w.pid: w for w in self._workers.values() if w.attempt == latest and w.ended is None}
            if latest in self._trouble:
                self._hangs.ask(alive)  # a peer's end may be due to what these have called
                return
        verdict = self._hangs.look(alive)
        if verdict is None:
            return
        if self._tells_hangs:
            say(verdict)
        with self._lock:
            self._hung[latest] = replace(
                without_exception(verdict.ranks[0], latest, time.time(), verdict.sentence), is_whole=True
            )
            for worker in alive.values():
                _kill(worker)

    def _look(self) -> None:
        with self._lock:
            marks = self._launch_dir.marks()
            for mark in marks:
                if mark.event == "started" and mark.pid not in self._workers:
                    self._workers[mark.pid] = _worker(mark.attempt, mark.rank, mark.pid)
            now = time.time()
            if self._is_ending() and self._signalled is None:
                self._signalled = now
            finished = {mark.pid for mark in marks if mark.event in ("done", "left")}
            before = set(self._trouble)
            for worker in self._workers.values():
                if worker.ended is None and _has_ended(worker):
                    worker.ended = now
                if worker.ended is not None and worker.pid not in finished:
                    self._trouble.setdefault(worker.attempt, now)
            for mark in marks:
                if mark.event == "failed":
                    self._trouble.setdefault(mark.attempt, now)
            for worker in self._workers.values():
                if worker.attempt in self._trouble.keys() - before and worker.ended is None:
                    worker.stopped = is_stopped(worker.pid)
            for worker in self._workers.values():
                if now - self._trouble.get(worker.attempt, self._signalled or now) > GRACE_S:
                    _kill(worker)
            stop = self._stop_request
            if stop is not None and stop.number is not None:
                self._notified_attempt = (
                    self._latest() if self._notified_attempt is None else self._notified_attempt
                )
                # A run that was asked to stop isn't restarted.
                if stop.is_over or self._latest() > self._notified_attempt:
                    stop.force()

    def _latest(self) -> int:
        return max((worker.attempt for worker in self._workers.values()), default=0)

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
